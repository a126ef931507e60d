/*
 * A program that uses two devices of different kinds at once. Prints the devices, uses each, and says "OK" if each answered for
 * itself. The first argument is the number of devices to be found.
 */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The function, and not the macro that may choose a newer one, which the other library does not have. */
#undef ibv_reg_mr

static char buffer[4096];

/* Opens a device, registers memory with it, and returns the vendor it names; 0 if anything fails. */
static unsigned int use(struct ibv_device *device)
{
	struct ibv_context *context = ibv_open_device(device);
	struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;
	struct ibv_mr *mr = pd ? ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE) : NULL;
	struct ibv_device_attr attr;

	if (!mr || ibv_query_device(context, &attr) || ibv_dereg_mr(mr) || ibv_dealloc_pd(pd) || ibv_close_device(context))
		return 0;
	return attr.vendor_id;
}

int main(int argc, char **argv)
{
	int count = 0, expected = argc > 1 ? atoi(argv[1]) : 2;
	struct ibv_device **list = ibv_get_device_list(&count);
	unsigned int vendors[2] = {0};

	for (int n = 0; list && n < count && n < 2; n++) {
		printf("device %s\n", ibv_get_device_name(list[n]));
		fflush(stdout);
		vendors[n] = use(list[n]);
	}
	if (list)
		ibv_free_device_list(list);
	if (count != expected || !vendors[0] || (count > 1 && (!vendors[1] || vendors[0] == vendors[1]))) {
		printf("%d devices, vendors %#x and %#x\n", count, vendors[0], vendors[1]);
		return 1;
	}
	printf("OK\n");
	return 0;
}
