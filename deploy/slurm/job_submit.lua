-- Lets Longshore choose the GPUs of jobs that users submit by sbatch: each is held, stamped, and found by Longshore.
-- Goes beside slurm.conf, which needs JobSubmitPlugins=lua. docs/slurm.md has the rest.
--
-- Nobody waits for Longshore here. If it does not answer, the job is held all the same, and taken up when it is back.

local PARTITIONS = { longshore = true }                -- whose jobs are held; all others pass untouched
local SOCKET     = "/run/longshore/sbatch.sock"        -- as sbatch_socket in Longshore's configuration
local TRUSTED    = { [0] = true }                      -- user ids of Longshore and of administrators

local WAIT_S     = 0.1                                 -- for each of connecting, sending and receiving
local REST_S     = 10                                  -- after a missed answer, without further requests
local NO_VAL, NO_VAL16 = slurm.NO_VAL or 4294967294, 65534

local has_socket, unix = pcall(require, "socket.unix") -- Debian: lua-socket; without it no request is sent
local rest_until = 0

local function is_given(value)
  return value ~= nil and value ~= "" and value ~= NO_VAL and value ~= NO_VAL16
end

local function asks_for_gpus(job)
  for _, tres in ipairs({ "tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket" }) do
    if is_given(job[tres]) and string.find(job[tres], "gpu") then return true end
  end
  return false
end

-- Returns whether one of the partitions that a job may run in is ours, and whether one is not.
local function whose(job, part_list)
  local names = job.partition
  if not is_given(names) then
    for partition, part in pairs(part_list) do
      if part.flag_default ~= 0 then names = part.name or partition end
    end
  end
  local ours, others = false, false
  for name in string.gmatch(names or "", "[^,%s]+") do
    if PARTITIONS[name] then ours = true else others = true end
  end
  return ours, others
end

-- Returns the number in "gres:gpu:4" or "gres:gpu", nil for whatever else is asked for.
local function plain_gpus(tres)
  if tres == "gres:gpu" or tres == "gpu" then return 1 end
  return tonumber(string.match(tres, "^gres:gpu:(%d+)$") or string.match(tres, "^gpu:(%d+)$"))
end

-- Returns nodes and GPUs on each, or nil and why that is unknown.
local function shape(job)
  local nodes = is_given(job.min_nodes) and job.min_nodes > 0 and job.min_nodes or 1
  if is_given(job.tres_per_task) or is_given(job.tres_per_socket) then
    return nil, "write --gpus-per-node in place of --gpus-per-task and --gpus-per-socket"
  end
  if is_given(job.tres_per_node) and is_given(job.tres_per_job) then
    return nil, "write --gpus-per-node or --gpus, not both"
  end
  local gpus = plain_gpus(is_given(job.tres_per_node) and job.tres_per_node or job.tres_per_job)
  if gpus == nil then return nil, "ask for a number of GPUs, such as --gres=gpu:2, and for nothing else by --gres" end
  if is_given(job.tres_per_job) then gpus = gpus / nodes end
  if gpus < 1 or gpus ~= math.floor(gpus) then return nil, "ask for the same number of GPUs on each node" end
  return nodes, gpus
end

local REFUSED = {
  req_nodes = "--nodelist", exc_nodes = "--exclude", features = "--constraint", dependency = "--dependency",
}

local function why_not(job)
  for field, option in pairs(REFUSED) do
    if is_given(job[field]) then return option .. " cannot be obeyed, as Longshore chooses when and where it runs" end
  end
  if is_given(job.array_inx) and string.find(job.array_inx, "%", 1, true) then
    return "an array cannot have a limit of tasks at a time: leave out what begins with %"
  end
  if is_given(job.shared) and job.shared ~= 1 then return "--exclusive cannot be obeyed: Longshore places GPUs" end
  if job.priority == 0 then return "--hold cannot be obeyed: submit it without, and use `longshore job hold`" end
  if is_given(job.het_job_offset) then return "heterogeneous jobs cannot be placed" end
  if not is_given(job.script) then return "only batch jobs can be placed: use sbatch" end
  return nil
end

local function chance()
  local file = assert(io.open("/dev/urandom", "rb"))
  local bytes = file:read(10)
  file:close()
  return (string.gsub(bytes, ".", function(byte) return string.format("%02x", string.byte(byte)) end))
end

local function ask(line)
  local connection = unix()
  connection:settimeout(WAIT_S)
  local answer, err = connection:connect(SOCKET)
  if answer then answer, err = connection:send(line) end
  if answer then answer, err = connection:receive("*l") end
  connection:close()
  return answer, err
end

-- Returns why a job is refused, nil if it is not, or if the scheduler does not answer.
local function refusal(nodes, gpus)
  if not has_socket or os.time() < rest_until then return nil end
  local fine, answer, err = pcall(ask, string.format("%d\t%d\n", nodes, gpus))
  if not fine or answer == nil then
    rest_until = os.time() + REST_S
    slurm.log_info("longshore: no answer (%s), the job is held", tostring(fine and err or answer))
    return nil
  end
  return string.match(answer, "^refuse\t(.*)$")
end

local function refuse(reason)
  slurm.log_user("longshore: %s", reason)
  return slurm.ERROR
end

local function is_trusted(uid) return TRUSTED[uid] == true end

function slurm_job_submit(job, part_list, submit_uid)
  if is_given(job.admin_comment) and string.find(job.admin_comment, "^longshore") then job.admin_comment = "" end
  local is_its_own = is_trusted(submit_uid) and is_given(job.comment) and string.find(job.comment, "^longshore")
  local ours, others = whose(job, part_list)
  if is_its_own or not ours or not asks_for_gpus(job) then return slurm.SUCCESS end
  if others then return refuse("name partitions that Longshore places jobs of, or only others: " .. job.partition) end
  local reason = why_not(job)
  if reason then return refuse(reason) end
  local nodes, gpus = shape(job)
  if nodes == nil then return refuse(gpus) end
  reason = refusal(nodes, gpus)
  if reason then return refuse(reason) end
  local name = string.sub(string.gsub(job.name or "job", "[^%w]", "-"), 1, 40)
  job.admin_comment = string.format("longshore:%d:%s:%dx%d:%s", os.time(), chance(), nodes, gpus, name)
  job.priority = 0 -- held
  -- srun would request that number again, which Slurm 22.05 refuses where each GPU has a type; without it a step has all.
  if is_given(job.environment["SLURM_GPUS_PER_NODE"]) then job.environment["SLURM_GPUS_PER_NODE"] = "" end
  return slurm.SUCCESS
end

-- What no user changes of a job that Longshore places: a held job that he releases would run wherever Slurm likes, and
-- a released one that he lets wait would keep its GPUs from all others.
local KEPT = {
  "priority", "req_nodes", "exc_nodes", "min_nodes", "max_nodes", "partition", "tres_per_node", "tres_per_job",
  "tres_per_task", "tres_per_socket", "dependency", "features", "licenses", "qos", "reservation", "array_inx",
}

function slurm_job_modify(job, rec, part_list, modify_uid)
  local is_stamped = is_given(rec.admin_comment) and string.find(rec.admin_comment, "^longshore:%d")
  if not is_stamped or is_trusted(modify_uid) then return slurm.SUCCESS end
  local is_changed = is_given(job.begin_time) and job.begin_time > 0 or is_given(job.shared)
  for _, field in ipairs(KEPT) do is_changed = is_changed or is_given(job[field]) end
  if is_changed then return refuse("only Longshore releases and places this job; `scancel` ends it") end
  return slurm.SUCCESS
end

return slurm.SUCCESS
