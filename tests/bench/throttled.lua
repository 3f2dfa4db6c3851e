-- What wrk does for bench_throttled.c. Each connection waits 0.5 to 1.5 s before each request. So
-- with 400 connections, about 400 requests a second arrive if they are answered soon. The path of a
-- request contains its time, and the server puts the path into its answer.
--
--     wrk ... --script tests/bench/throttled.lua URL
--
-- Nothing counts in the first two seconds. An answer is in time after at most 200 ms.
local ffi = require("ffi")
ffi.cdef("typedef struct { long s, ns; } time_pair; int clock_gettime(int, time_pair *);")
local pair = ffi.new("time_pair")
local MONOTONIC, WARM_UP, IN_TIME = 1, 2000, 200
local threads = {}

local function milliseconds()
   ffi.C.clock_gettime(MONOTONIC, pair)
   return tonumber(pair.s) * 1000 + tonumber(pair.ns) / 1e6
end

function setup(thread)
   table.insert(threads, thread)
end

function init()
   math.randomseed(1)
   started = milliseconds()
   in_time, late, refused, times = 0, 0, 0, {}
end

function delay()
   return 500 + math.random(0, 1000)
end

function request()
   return wrk.format("GET", string.format("/?%.3f", milliseconds()))
end

function response(status, headers, body)
   local now = milliseconds()
   if now < started + WARM_UP then return end
   local sent = tonumber(body:match("^done: /%?([%d.]+)"))
   if not sent then
      refused = refused + 1
      return
   end
   local duration = math.ceil(now - sent)
   times[duration] = (times[duration] or 0) + 1
   if duration <= IN_TIME then in_time = in_time + 1 else late = late + 1 end
end

local function percentile(times, count, part)
   local durations, seen = {}, 0
   for duration in pairs(times) do table.insert(durations, duration) end
   table.sort(durations)
   for _, duration in ipairs(durations) do
      seen = seen + times[duration]
      if seen >= part * count then return duration end
   end
   return 0
end

function done()
   for _, thread in ipairs(threads) do
      local in_time, late = thread:get("in_time"), thread:get("late")
      print(string.format("in_time %d late %d refused %d p99 %d", in_time, late,
         thread:get("refused"), percentile(thread:get("times"), in_time + late, 0.99)))
   end
end
