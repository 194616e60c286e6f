"""The Redis side of the shared cache, as scripts that Redis runs atomically.

One tenant's keys share a hash tag, so they live on one cluster slot:

    agentops:cache:{tenant}:e:<key digest>   entry: key digest, generations of its tags, newline, JSON
    agentops:cache:{tenant}:l:<key digest>   lease: the leader's token and the generations it saw; expires by itself
    agentops:cache:{tenant}:g:<tag digest>   a tag's generation: a random token, deleted by every write

Invariant: an entry counts only while every tag still has the generation that was read *before* the value was computed.
Generations are random and a missing one matches nothing, so eviction, expiry or a flush can only cause a miss.
"""

# KEYS: entry, lease, tags…   ARGV: key digest, token, lease ms, generation life ms, fresh generation
# -> {"hit", JSON} | {"lead", generations} | {"wait", ""}
BEGIN = """
local generations = {}
for i = 3, #KEYS do
  local generation = redis.call('GET', KEYS[i])
  if not generation then
    generation = ARGV[5] .. i
    redis.call('SET', KEYS[i], generation, 'PX', ARGV[4])
  elseif redis.call('PTTL', KEYS[i]) < tonumber(ARGV[4]) / 2 then
    redis.call('PEXPIRE', KEYS[i], ARGV[4])
  end
  generations[#generations + 1] = generation
end
local seen = table.concat(generations, ',')
local entry = redis.call('GET', KEYS[1])
local head = ARGV[1] .. seen .. '\\n'
if entry and string.sub(entry, 1, #head) == head then
  return {'hit', string.sub(entry, #head + 1), ARGV[1]}
end
local mine = ARGV[2] .. seen
local lease = redis.call('GET', KEYS[2])
if lease and lease ~= mine and string.sub(lease, #ARGV[2] + 1) == seen then
  return {'wait', '', ARGV[1]}
end
redis.call('SET', KEYS[2], mine, 'PX', ARGV[3])
return {'lead', seen, ARGV[1]}
"""

# KEYS: entry, lease, tags…   ARGV: key digest, token, generations seen, JSON, life ms   -> 1 when stored
FINISH = """
local generations = {}
for i = 3, #KEYS do
  generations[#generations + 1] = redis.call('GET', KEYS[i]) or ''
end
local stored = 0
if ARGV[5] ~= '0' and table.concat(generations, ',') == ARGV[3] then
  redis.call('SET', KEYS[1], ARGV[1] .. ARGV[3] .. '\\n' .. ARGV[4], 'PX', ARGV[5])
  stored = 1
end
if redis.call('GET', KEYS[2]) == ARGV[2] .. ARGV[3] then
  redis.call('DEL', KEYS[2])
end
return stored
"""

# KEYS: lease   ARGV: lease value, lease ms   -> 1 while it is still ours
RENEW = """
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
"""
