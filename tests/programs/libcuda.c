/*
 * A stand-in for the CUDA driver: two GPUs whose memory is that of memfds, which it exports in the place of dma-bufs. Addresses of
 * memory are none that a processor may touch; what is freed is gone at once. Every call that makes or ends something is a line in the
 * file that FAKE_CUDA_LOG names. FAKE_CUDA_NO_DMA_BUF makes it one that cannot export.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define GPUS 2
#define MOST 16
#define FIRST 0x300000000000u
#define STRIDE ((uint64_t)1 << 36)

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_CONTEXT = 201 };

static int initialized, current = -1, contexts[GPUS];
static struct { int fd, gpu; size_t size; } memory[MOST];

static void note(const char *what, uint64_t value)
{
	FILE *log = fopen(getenv("FAKE_CUDA_LOG") ? getenv("FAKE_CUDA_LOG") : "/dev/null", "a");

	fprintf(log, "%s %#llx\n", what, (unsigned long long)value);
	fclose(log);
}

static int place(uint64_t address, uint64_t *offset)
{
	uint64_t number = (address - FIRST) / STRIDE;

	*offset = (address - FIRST) % STRIDE;
	return address >= FIRST && number < MOST && memory[number].size ? (int)number : -1;
}

int cuInit(unsigned int flags)
{
	initialized = flags == 0;
	return initialized ? SUCCESS : INVALID_VALUE;
}

int cuGetErrorString(int code, const char **text)
{
	*text = code == OUT_OF_MEMORY ? "out of memory" : "some other error";
	return SUCCESS;
}

int cuDeviceGetCount(int *count)
{
	*count = GPUS;
	return initialized ? SUCCESS : NOT_INITIALIZED;
}

int cuDeviceGet(int *device, int number)
{
	*device = 100 + number;
	return number < GPUS ? SUCCESS : INVALID_VALUE;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
	*value = attribute == 124 && device >= 100 && !getenv("FAKE_CUDA_NO_DMA_BUF");
	return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
	note("retain", device - 100);
	contexts[device - 100]++;
	*context = &contexts[device - 100];
	return SUCCESS;
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
	note("release", device - 100);
	contexts[device - 100]--;
	return SUCCESS;
}

int cuCtxSetCurrent(void *context)
{
	current = (int *)context - contexts;
	return SUCCESS;
}

int cuMemAlloc_v2(uint64_t *address, size_t size)
{
	int number = 0;

	if (current < 0 || !contexts[current])
		return INVALID_CONTEXT;
	while (number < MOST && memory[number].size)
		number++;
	if (number == MOST || size > STRIDE)
		return OUT_OF_MEMORY;
	memory[number].fd = memfd_create("gpu", MFD_CLOEXEC);
	memory[number].gpu = current;
	memory[number].size = size;
	if (ftruncate(memory[number].fd, size))
		return OUT_OF_MEMORY;
	*address = FIRST + number * STRIDE;
	note("allocate", *address);
	return SUCCESS;
}

int cuMemFree_v2(uint64_t address)
{
	uint64_t offset;
	int number = place(address, &offset);

	if (number < 0 || offset)
		return INVALID_VALUE;
	note("free", address);
	if (ftruncate(memory[number].fd, 0))
		return INVALID_VALUE;
	close(memory[number].fd);
	memory[number].size = 0;
	return SUCCESS;
}

int cuMemcpyHtoD_v2(uint64_t address, const void *from, size_t size)
{
	uint64_t offset;
	int number = place(address, &offset);

	if (number < 0 || offset + size > memory[number].size)
		return INVALID_VALUE;
	return pwrite(memory[number].fd, from, size, offset) == (ssize_t)size ? SUCCESS : INVALID_VALUE;
}

int cuMemGetHandleForAddressRange(void *handle, uint64_t address, size_t size, int type, unsigned long long flags)
{
	uint64_t offset;
	int number = place(address, &offset);
	long page = sysconf(_SC_PAGESIZE);

	if (number < 0 || offset || type != 1 || flags || size % page || size > memory[number].size)
		return INVALID_VALUE;
	*(int *)handle = dup(memory[number].fd);
	note("export", address);
	return SUCCESS;
}
