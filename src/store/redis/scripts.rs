//! The scripts: one a transition, run by the server as one step on one key.
//!
//! They translate what `core::transition` says of time and tokens, and nothing more: who may claim what stands in the way is decided by
//! the core, on the record as it was read, and a script then writes only if the record is still that one.
//!
//! A record is a hash. Its key expires when the record is forgotten, never when a lease runs out:
//!
//! | field | what |
//! |---|---|
//! | `v` | the version, 1 |
//! | `s` | the state: 0 in flight, 1 unknown, 2 complete, 3 tombstone |
//! | `t` | the claim's token, 16 bytes |
//! | `a`, `e` | start and end of the retention, milliseconds of the server's clock |
//! | `l` | in flight: the end of the lease; unknown: since when |
//! | `r` | how long the key is refused after `e`, in milliseconds; absent: not at all |
//! | `c`, `w` | the upstream's status; why a tombstone has no answer |
//! | `h` | route and digests: a head frame, sealed |
//! | `b` | the answer: an answer frame, sealed |

use std::sync::OnceLock;

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

use super::kept::hex;

/// A script and the name that the server calls it by.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) text: String,
    pub(super) hash: String,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Scripts {
    pub(super) begin: Script,
    pub(super) renew: Script,
    pub(super) settle: Script,
    pub(super) read: Script,
    pub(super) purge: Script,
    pub(super) resolve: Script,
    /// Whether the time that they take is the server's, as TIME tells it; tests may set theirs.
    pub(super) take_server_time: bool,
}

impl Scripts {
    /// Those that take the server's time.
    pub(super) fn of_server() -> &'static Self {
        static SCRIPTS: OnceLock<Scripts> = OnceLock::new();
        SCRIPTS.get_or_init(|| Self::with(SERVER_TIME))
    }

    /// Those that take the time which stands under the first key among `clock:0` to `clock:15` that their server has, so that tests can
    /// set it on every node.
    #[cfg(test)]
    pub(super) fn of_test() -> &'static Self {
        static SCRIPTS: OnceLock<Scripts> = OnceLock::new();
        SCRIPTS.get_or_init(|| {
            Self::with(
                "local now
for n = 0, 15 do
  local told = pcall('GET', 'clock:' .. n)
  if type(told) == 'string' then now = tonumber(told) break end
end
",
            )
        })
    }

    fn with(time: &str) -> Self {
        let script = |read: &str, body: &str| {
            let text = format!("{CALL}{time}{read}{JUDGED}{body}");
            // How Redis names a script; no security rests on it.
            let hash = hex(digest(&SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes()).as_ref());
            Script { text, hash }
        };
        Self {
            begin: script(FIRST, BEGIN),
            renew: script(STATE, RENEW),
            settle: script(HEAD, SETTLE),
            read: script(WHOLE, READ),
            purge: script(STATE, PURGE),
            resolve: script(STATE, RESOLVE),
            take_server_time: time == SERVER_TIME,
        }
    }

    pub(super) fn all(&self) -> [&Script; 6] {
        [
            &self.begin,
            &self.renew,
            &self.settle,
            &self.read,
            &self.purge,
            &self.resolve,
        ]
    }
}

/// Every step of a script is paid by all who wait for the server: each asks for as little as it can, and numbers, which are whole and far
/// below 2^53, are passed on as they are.
const CALL: &str = "local call, pcall, key = redis.call, redis.pcall, KEYS[1]
";

const SERVER_TIME: &str = "local t = call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
";

/// The record's fields in the order of [`super::kept::FIELDS`], as far as they are needed. Of another type, a key is as unknown as of another
/// version.
const STATE: &str = "local f = pcall('HMGET', key, 'v', 's', 't', 'a', 'e', 'l', 'r')
";
const HEAD: &str = "local f = pcall('HMGET', key, 'v', 's', 't', 'a', 'e', 'l', 'r', 'h')
";
const WHOLE: &str =
    "local f = pcall('HMGET', key, 'v', 's', 't', 'a', 'e', 'l', 'r', 'c', 'w', 'h', 'b')
";

/// The same where mostly nothing is there: then nothing is read.
const FIRST: &str = "local there = call('EXISTS', key) == 1
local f = there and pcall('HMGET', key, 'v', 's', 't', 'a', 'e', 'l', 'r', 'c', 'w', 'h', 'b') or {}
";

/// What time has made of the record.
const JUDGED: &str = "local state, token = f[2], f[3]
local known = f[1] == '1' and state and token and tonumber(f[4]) and tonumber(f[5])
  and (state ~= '0' or tonumber(f[6])) and (not f[7] or tonumber(f[7]))
local retained, forgotten = 0, 0
if known then
  retained = tonumber(f[5])
  if state == '0' then retained = math.max(retained, tonumber(f[6])) end
  forgotten = retained + tonumber(f[7] or 0)
end
local function need_known()
  if not known and call('EXISTS', key) == 1 then error('the record has a format that this version does not know') end
end
local function lives() call('PEXPIREAT', key, math.max(now + 1, forgotten)) end
";

/// Arguments: token, lease, retention, refusal or nothing, head, the time after which it is too late; then of the record that may be taken over
/// its token, state and `l`, or nothing. Answers: 0 and the record, 1 claimed, 2 too late; the time.
const BEGIN: &str = "if there then need_known() end
if now > tonumber(ARGV[6]) then return {2, now} end
if known and now < forgotten then
  local held = state == '0' and now < retained
  if held and token == ARGV[1] then return {1, now} end
  local same = token == ARGV[7] and state == ARGV[8] and f[6] == ARGV[9]
  if not same or now >= retained then
    if now >= retained and f[11] then
      call('HDEL', key, 'b')
      f[11] = false
    end
    return {0, now, f}
  end
end
-- On a free key the first write is one that a full server refuses.
if known then call('DEL', key) end
local ends, lease = now + tonumber(ARGV[3]), now + tonumber(ARGV[2])
call('HSET', key, 'v', '1', 's', '0', 't', ARGV[1], 'a', now, 'e', ends, 'l', lease, 'h', ARGV[5])
forgotten = math.max(ends, lease)
if ARGV[4] ~= '' then
  call('HSET', key, 'r', ARGV[4])
  forgotten = forgotten + tonumber(ARGV[4])
end
lives()
return {1, now}
";

/// Arguments: token, lease. Answers whether it was held, and the time.
const RENEW: &str = "need_known()
if not known or state ~= '0' or token ~= ARGV[1] or now >= retained then return {0, now} end
local lease = math.max(now + tonumber(ARGV[2]), tonumber(f[6]))
-- The first write is one that a full server takes; the rest is then taken too.
call('HDEL', key, 'l')
call('HSET', key, 'l', lease)
forgotten = math.max(tonumber(f[5]), lease) + tonumber(f[7] or 0)
lives()
return {1, now}
";

/// Arguments: token, new state or nothing for a release, retention, `start` or `completion`, refusal or nothing, status, reason, answer,
/// channel, origin, id. Answers: 0 lost, 1 kept with start, end and head, 2 released; the time. Repeatable: what is settled so already is kept.
const SETTLE: &str = "need_known()
if not known or token ~= ARGV[1] or now >= retained then return {0, now} end
if state ~= '0' then
  if state == ARGV[2] then return {1, now, f[4], f[5], f[8]} end
  return {0, now}
end
local function tell() pcall('PUBLISH', ARGV[9], 'w' .. ARGV[10] .. ARGV[11]) end
if ARGV[2] == '' then
  call('DEL', key)
  tell()
  return {2, now}
end
local started = tonumber(f[4])
local at = math.max(now, started)
local ends = tonumber(f[5])
if ARGV[2] ~= '1' then
  if ARGV[4] == 'start' then ends = started + tonumber(ARGV[3]) else ends = at + tonumber(ARGV[3]) end
end
forgotten = ends
-- The first write is one that a full server takes; the rest is then taken too.
if ARGV[5] ~= '' then
  call('HDEL', key, 'l')
  call('HSET', key, 'r', ARGV[5])
  forgotten = ends + tonumber(ARGV[5])
else
  call('HDEL', key, 'l', 'r')
end
if ARGV[2] == '2' then
  call('HSET', key, 's', '2', 'e', ends, 'c', ARGV[6], 'b', ARGV[8])
elseif ARGV[2] == '3' then
  call('HSET', key, 's', '3', 'e', ends, 'c', ARGV[6], 'w', ARGV[7])
else
  call('HSET', key, 's', ARGV[2], 'e', ends, 'l', at)
end
lives()
tell()
return {1, now, f[4], ends, f[8]}
";

/// Answers the time, and the record if it is not forgotten.
const READ: &str = "need_known()
if not known or now >= forgotten then return {now} end
return {now, f}
";

/// Arguments: token and state of the record as it was read, or nothing where it cannot be read; channel, origin, id; the time after which it
/// is too late. Answers: 0 nothing is there, 1 purged, 2 a call runs under it, 3 it is not that one any more, 4 too late; the time. Where nothing
/// may be published nothing is purged: others would go on with what they have in memory.
const PURGE: &str = "if now > tonumber(ARGV[6]) then return {4, now} end
if known and now >= retained or call('EXISTS', key) == 0 then return {0, now} end
if (known and token or '') ~= ARGV[1] or (known and state or '') ~= ARGV[2] then return {3, now} end
if known and state == '0' and now < tonumber(f[6]) then return {2, now} end
call('PUBLISH', ARGV[3], 'p' .. ARGV[4] .. ARGV[5])
call('DEL', key)
return {1, now}
";

/// Arguments: token, state and `l` of the record as it was read; channel, origin, id; then the new token, status, head and answer, or
/// nothing for a release; the time after which it is too late. Answers whether the record was still that one, 4 too late; and the time.
const RESOLVE: &str = "need_known()
if now > tonumber(ARGV[11]) then return {4, now} end
local lapsed = state == '1' or (state == '0' and now >= tonumber(f[6] or 0))
if not known or now >= retained or not lapsed or token ~= ARGV[1] or state ~= ARGV[2] or f[6] ~= ARGV[3] then return {0, now} end
call('PUBLISH', ARGV[4], 'p' .. ARGV[5] .. ARGV[6])
if ARGV[7] == '' then
  call('DEL', key)
else
  call('HSET', key, 's', '2', 't', ARGV[7], 'c', ARGV[8], 'h', ARGV[9], 'b', ARGV[10])
  call('HDEL', key, 'l')
  lives()
end
return {1, now}
";
