# shellcheck shell=bash
# Completes the commands and flags of doormanctl in bash.
_doormanctl() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} offered=''
    local flags='--json --reason --url --cacert --cert --key --timeout --events --settings'
    local commands='status check limits top key reset ban bans holds counters export audit undo'
    commands="$commands override plan drain drain-alone undrain config events descriptor convert"
    commands="$commands reservations shards help"
    flags="$flags --help --version"
    case $before in
    --cacert | --cert | --key | --settings | convert) offered=FILE ;;
    --url | --timeout | --events | --reason | undo) ;;
    events) offered='permit. queue. ban. hold. key. lease. mastership. config. admin.' ;;
    config) offered='get check versions diff put rollback' ;;
    override) offered='set list end ending' ;;
    plan) offered='set load list end' ;;
    top) offered='units nearest' ;;
    shards) offered='move drain rebalance force remove' ;;
    holds | reservations) offered=end ;;
    units) offered='minute hour day' ;;
    check | diff | put) if [ "${COMP_WORDS[COMP_CWORD - 2]}" = config ]; then offered=FILE; fi ;;
    *) offered="$flags $commands" ;;
    esac
    COMPREPLY=()
    if [ "$offered" = FILE ]; then
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
    else
        mapfile -t COMPREPLY < <(compgen -W "$offered" -- "$word")
    fi
}
complete -F _doormanctl doormanctl
