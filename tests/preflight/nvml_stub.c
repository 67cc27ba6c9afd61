/* A library with the functions of NVML that Longshore calls. It answers as in NVIDIA's documentation.
 *
 * GPU 0 is well but for its link to the host. Where NVML_STUB_LOG names a file that link is well too, clocks and limits
 * of power may be set, and what is set is written there. GPU 1 waits for a row to be replaced and is slowed down by heat. GPU 2 supports nothing. GPU 3 is lost.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NO_PERMISSION = 4, INSUFFICIENT_SIZE = 7, LOST = 15 };
typedef struct { int index; } Gpu;
typedef struct { unsigned pid; unsigned long long bytes; unsigned instance, compute; } Process;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct {
    char old[16]; unsigned domain, bus, device, id, subsystem; char address[32];
} Pci;
static Gpu gpus[4] = {{0}, {1}, {2}, {3}};
static int note(const char *what, Gpu *gpu, unsigned value) {
    const char *path = getenv("NVML_STUB_LOG");
    if (!path) return NO_PERMISSION;
    FILE *log = fopen(path, "a");
    fprintf(log, "%s %d %u\n", what, gpu->index, value);
    fclose(log);
    return SUCCESS;
}
#define OPTIONAL(gpu) if ((gpu)->index == 2) return NOT_SUPPORTED; if ((gpu)->index == 3) return LOST

int nvmlInitWithFlags(unsigned flags) { (void)flags; return SUCCESS; }
int nvmlInit_v2(void) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code == LOST ? "GPU is lost" : "an error"; }
int nvmlSystemGetDriverVersion(char *to, unsigned most) { snprintf(to, most, "580.65.06"); return SUCCESS; }
int nvmlSystemGetNVMLVersion(char *to, unsigned most) { snprintf(to, most, "13.580.65"); return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 4; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu **gpu) {
    if (index > 3) return 2;
    *gpu = &gpus[index];
    return index == 3 ? LOST : SUCCESS;
}
int nvmlDeviceGetMemoryInfo(Gpu *gpu, Memory *memory) {
    (void)gpu;
    memory->total = 80ull << 30; memory->free = 79ull << 30; memory->used = 1ull << 30;
    return SUCCESS;
}
int nvmlDeviceGetUUID(Gpu *gpu, char *to, unsigned most) { snprintf(to, most, "GPU-%d", gpu->index); return SUCCESS; }
int nvmlDeviceGetName(Gpu *gpu, char *to, unsigned most) { (void)gpu; snprintf(to, most, "NVIDIA H100"); return SUCCESS; }
int nvmlDeviceGetVbiosVersion(Gpu *gpu, char *to, unsigned most) { OPTIONAL(gpu); snprintf(to, most, "96.00"); return SUCCESS; }
int nvmlDeviceGetPciInfo_v3(Gpu *gpu, Pci *pci) {
    memset(pci, 0, sizeof *pci);
    snprintf(pci->address, sizeof pci->address, "00000000:%02X:00.0", 15 + gpu->index);
    return SUCCESS;
}
int nvmlDeviceGetTotalEccErrors(Gpu *gpu, int kind, int counter, unsigned long long *count) {
    OPTIONAL(gpu);
    *count = kind == 1 && counter == 0 ? gpu->index : 99;
    return SUCCESS;
}
int nvmlDeviceGetRemappedRows(Gpu *gpu, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    OPTIONAL(gpu);
    *corrected = 1; *uncorrected = 2; *pending = gpu->index == 1; *failed = 0;
    return SUCCESS;
}
int nvmlDeviceGetCurrPcieLinkGeneration(Gpu *gpu, unsigned *value) { OPTIONAL(gpu); *value = 5; return SUCCESS; }
int nvmlDeviceGetCurrPcieLinkWidth(Gpu *gpu, unsigned *value) { OPTIONAL(gpu); *value = getenv("NVML_STUB_LOG") ? 16 : 8; return SUCCESS; }
int nvmlDeviceGetMaxPcieLinkGeneration(Gpu *gpu, unsigned *value) { OPTIONAL(gpu); *value = 5; return SUCCESS; }
int nvmlDeviceGetUtilizationRates(Gpu *gpu, unsigned *rates) { OPTIONAL(gpu); rates[0] = 10 * gpu->index; rates[1] = 0; return SUCCESS; }
int nvmlDeviceGetTemperature(Gpu *gpu, int sensor, unsigned *value) { (void)sensor; OPTIONAL(gpu); *value = 40; return SUCCESS; }
int nvmlDeviceGetMaxPcieLinkWidth(Gpu *gpu, unsigned *value) { OPTIONAL(gpu); *value = 16; return SUCCESS; }
int nvmlDeviceGetNvLinkState(Gpu *gpu, unsigned link, unsigned *active) {
    OPTIONAL(gpu);
    if (link > 1) return NOT_SUPPORTED;
    *active = link == 0;
    return SUCCESS;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(Gpu *gpu, unsigned link, Pci *pci) {
    (void)link;
    memset(pci, 0, sizeof *pci);
    snprintf(pci->address, sizeof pci->address, "00000000:%02X:00.0", 15 + !gpu->index);
    return SUCCESS;
}
int nvmlDeviceGetNvLinkErrorCounter(Gpu *gpu, unsigned link, int counter, unsigned long long *value) {
    (void)gpu;
    *value = 10 * counter + link;  /* replay 0, recovery 1, CRC of flits 2 */
    return SUCCESS;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(Gpu *gpu, unsigned long long *reasons) {
    OPTIONAL(gpu);
    *reasons = gpu->index == 1 ? 0x41 : 0x05;  /* heat and idle; idle and power cap */
    return SUCCESS;
}
int nvmlDeviceGetPowerManagementLimit(Gpu *gpu, unsigned *limit) { OPTIONAL(gpu); *limit = 400000; return SUCCESS; }
int nvmlDeviceGetPowerManagementDefaultLimit(Gpu *gpu, unsigned *limit) { OPTIONAL(gpu); *limit = 700000; return SUCCESS; }
/* An older driver: it has the second version of this call only. */
int nvmlDeviceGetComputeRunningProcesses_v2(Gpu *gpu, unsigned *count, Process *processes) {
    OPTIONAL(gpu);
    if (gpu->index == 1 && *count < 1) { *count = 1; return INSUFFICIENT_SIZE; }
    *count = gpu->index;
    if (gpu->index == 1) { processes[0].pid = 4321; processes[0].bytes = 1ull << 30; }
    return SUCCESS;
}
int nvmlDeviceSetGpuLockedClocks(Gpu *gpu, unsigned least, unsigned most) {
    return least == most ? note("clock", gpu, least) : 2;
}
int nvmlDeviceSetPowerManagementLimit(Gpu *gpu, unsigned limit) { return note("power", gpu, limit); }
int nvmlDeviceResetGpuLockedClocks(Gpu *gpu) { return note("reset", gpu, 0); }
