#compdef doormanctl
# Completes the commands and flags of doormanctl in zsh.
_doormanctl_command() {
    local -a commands
    commands=(
        'status:the process and its resources, or the leases of one resource'
        'check:whether the server works, is ready, and is the master'
        'limits:what each limit has granted and refused'
        'top units:the keys that use most units'
        'top nearest:the keys that are nearest to their limits'
        'top:the keys that are refused and granted most often'
        'key:what the limits have counted for one key'
        'reset:make the counters of one key fresh, and end its ban'
        'ban:ban one key for a time, or end its ban'
        'bans:the keys that are banned, by whom, and for how long'
        'holds end:end one hold at once'
        'reservations end:end one reservation at once'
        'holds:who holds units of limits of kind CONCURRENCY, who waits, and what is reserved'
        'counters:all counters and bans, as a table'
        'export:all counters and bans, as lines of JSON'
        'audit:who has done what, when, and why'
        'undo:undo an act of the audit'
        'override set:give one key other figures of a limit, for a time'
        'override list:the overrides that have not ended'
        'override end:end an override before its time'
        'plan set:give one key a plan of the configuration'
        'plan load:give many keys their plans'
        'plan list:which key has which plan'
        'plan end:end the plan of a key before its time'
        'override ending:the overrides that end within a time'
        'drain:let this process hand over, before its machine is taken away'
        'drain-alone:the same for a server without an election'
        'undrain:end a drain'
        'shards move:let another node decide for one shard'
        'shards drain:move all shards of a node to the others'
        'shards rebalance:give each node equally many shards'
        'shards force:take the shards of a node whose machine is gone'
        'shards remove:remove a node without shards from the map'
        'shards:which node has how many shards, and what moves'
        'config get:the configuration in force, or one version of it, as JSON'
        'config check:check a configuration, and show what it would change and drop'
        'config versions:who has changed the configuration, when, and why'
        'config diff:how a version differs from the one before it'
        'config put:change the configuration'
        'config rollback:bring an old version of the configuration back'
        'events:what happens, as it happens'
        'descriptor:what a descriptor of a gateway becomes'
        'convert:make a configuration from one of Envoys ratelimit'
        'help:what a command does'
    )
    _describe command commands
}
_arguments \
    '--json[print the answer of the server as it is]' \
    '--reason[why, for the audit]:TEXT:' \
    '--url[the HTTP address of a server]:URL:' \
    '--cacert[the authorities of the certificate]:FILE:_files' \
    '--cert[the certificate of the client]:FILE:_files' \
    '--key[the key of --cert]:FILE:_files' \
    '--timeout[fail when nothing has come for this time]:SECONDS:' \
    '--events[where events come from]:URL:' \
    '--settings[a file of settings]:FILE:_files' \
    '--help[print the help]' \
    '--version[print the version]' \
    '1:command:_doormanctl_command' \
    '*:argument:_files'
