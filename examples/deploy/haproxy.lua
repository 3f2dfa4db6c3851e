-- The action `http-request lua.doorman RESOURCE` of haproxy.cfg asks Doorman for a permit. It sets
-- the variables txn.doorman_status and txn.doorman_retry_after. The call blocks no thread of HAProxy.

local address = "http://127.0.0.1:15050"
local headers = {["host"] = {"localhost"}}
-- headers["authorization"] = {"Bearer TOKEN"} -- if Doorman has --http-token

local function escape(text)
    return (text:gsub("[^%w%-._~]", function(byte) return string.format("%%%02X", byte:byte()) end))
end

-- The key is the address of the client.
local function doorman(txn, resource)
    local url = address .. "/v1/allow?resource=" .. escape(resource) ..
        "&key=" .. escape(tostring(txn.sf:src()))
    local ok, response = pcall(function()
        return core.httpclient():get{url = url, headers = headers, timeout = 2000}
    end)
    if not ok or not response then return end
    txn:set_var("txn.doorman_status", response.status)
    local retry_after = response.headers and response.headers["retry-after"]
    if retry_after then txn:set_var("txn.doorman_retry_after", retry_after[0]) end
end

core.register_action("doorman", {"http-req"}, doorman, 1)
