"""A few rows in each format, with the jobs in them worked out by hand."""

import json
from pathlib import Path

ITP = "job_id,submission_time,duration,num_gpu\na,100,60,8\nb,130,0,8\nc,90,600,0\nd,95.5,1e3,2\n"
MURI = (
    "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,"
    "resource_time_0,resource_time_1,resource_time_2,priority\r\n"
    "0,4,1000,10,resnet18,128,927475000,0,1010,1,2,3,0\r\n1,1,3500,10,strange,128,2000,0,107,0.5,2,3,1\r\n"
)
TIRESIAS = (
    "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n"
    "1,4,30,100,vgg16,3600,0\n2,1,90,100,resnet50,120,60\n3,1,95,100,resnet50,0,5\n"
)
OPENB = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
    "p0,1,1,1,460,,LS,Running,10,110,20\np1,1,1,8,1000,,BE,Pending,12,50,\np2,1,1,0,0,,LS,Failed,13,50,14\n"
    "p3,1,1,4,1000,,LS,Succeeded,30,31,30\n"
)
HELIOS = (
    "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
    "7,u,v,8,4,1,COMPLETED,2020-04-02 00:00:10,2020-04-02 00:01:10,2020-04-02 00:02:10,60,60\n"
    "8,u,v,1,4,1,CANCELLED,2020-04-01 23:59:50,,,,\n"
    "9,u,v,2,4,1,FAILED,2020-04-02 00:00:00,2020-04-02 00:00:00,2020-04-02 00:00:05,5,0\n"
)
# The first rows of the two files as their README gives them: in Kalos's, duration is run time and queue together.
SEREN = (
    "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time\n"
    "5778432,u5907,1,8,128,Other,FAILED,2023-03-01 00:18:22+08:00,2023-03-01 00:18:54+08:00,"
    "2023-03-01 00:20:51+08:00,117,32,936.0\n"
)
KALOS = (
    "job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,shared_mem_per_pod,type,state,submit_time,start_time,"
    "end_time,fail_time,stop_time,duration,queue,gpu_time\n"
    "dlc1,uf794,8,64,960,1000,100.0,Other,CANCELLED,2023-05-17 11:28:42+00:00,2023-05-17 11:28:54+00:00,"
    "2023-05-17 11:30:04+00:00,,2023-05-17 11:30:04+00:00,82,12.0,5248.0\n"
    "dlc2,uf794,8,64,960,1000,100.0,Other,RUNNING,2023-05-17 19:28:42+08:00,2023-05-17 11:28:54+00:00,,,,9,12.0,0\n"
)
SIA = (
    "timestamp,duration,num_gpus,gpu_time,cluster\n"
    "2017-10-03 00:10:00,600,2,1200,x\n2017-10-03 00:00:00,60,1,60,x\n2017-10-03 00:05:00,0,1,0,x\n"
)
SWF = (
    "; Version: 2.2\n; Computer: a cluster\n"
    "  1 10 5 100 8 -1 -1 8 300 -1 1 1 1 1 1 -1 -1 -1\n"
    "2 20 5 50 -1 -1 -1 4 -1 -1 0 1 1 1 1 -1 -1 -1 ; aside\n"
    "3 30 -1 -1 -1 -1 -1 4 60 -1 5 1 1 1 1 -1 -1 -1\n"
    "1 10 5 40 8 -1 -1 8 300 -1 2 1 1 1 1 -1 -1 -1\n"
)
OWN = "id,gpus,work_s,submit_s,estimate_s,parameter_bytes\nx,2,10,5,20,\ny,1,7.5,0,,8e6\n"
PHILLY = [
    {
        "status": "Pass",
        "vc": "v",
        "jobid": "application_1",
        "user": "u",
        "submitted_time": "2017-10-09 07:00:00",
        "attempts": [
            {
                "start_time": "2017-10-09 07:01:00",
                "end_time": "2017-10-09 07:02:00",
                "detail": [{"ip": "m1", "gpus": ["gpu0"]}],
            },
            {
                "start_time": "2017-10-09 08:00:00",
                "end_time": "2017-10-09 09:00:00",
                "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}, {"ip": "m2", "gpus": ["gpu0"]}],
            },
        ],
    },
    {"jobid": "application_2", "submitted_time": "2017-10-09 06:00:00", "attempts": []},
    {
        "jobid": "application_3",
        "submitted_time": "2017-10-09 06:59:00",
        "attempts": [{"start_time": "2017-10-09 07:00:00", "end_time": None, "detail": [{"ip": "m", "gpus": ["g"]}]}],
    },
]
# Per format: the file, then id, GPUs, work, submission of each job, and the rows left out.
EXAMPLES = {
    "itp": (ITP, [("d", 2, 1000, 0), ("a", 8, 60, 4.5)], 2),
    "muri": (MURI, [("0", 4, 927475, 0), ("1", 1, 2, 2.5)], 0),
    "tiresias": (TIRESIAS, [("1", 4, 3600, 0), ("2", 1, 120, 60)], 1),
    "openb": (OPENB, [("p0", 1, 90, 0), ("p3", 4, 1, 20)], 2),
    "helios": (HELIOS, [("9", 2, 5, 0), ("7", 8, 60, 10)], 1),
    "acme": (KALOS, [("dlc1", 64, 70, 0)], 1),
    "philly": (json.dumps(PHILLY, indent=2), [("application_1", 3, 3660, 0)], 2),
    "philly_sia": (SIA, [("line-3", 1, 60, 0), ("line-2", 2, 600, 600)], 1),
    "swf": (SWF, [("1", 8, 100, 0), ("2", 4, 50, 10)], 2),
    "longshore": (OWN, [("y", 1, 7.5, 0), ("x", 2, 10, 5)], 0),
}


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "trace"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path
