/*
 * Stands in for the distribution's libibverbs.so.1 on a host that has another RDMA device: one device, and for each verb that it is
 * asked a line on standard output.
 */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr

static struct ibv_device device = {.node_type = IBV_NODE_CA, .name = "other0", .dev_name = "uverbs0"};

static void say(const char *verb)
{
	printf("other library: %s\n", verb);
	fflush(stdout);
}

struct ibv_device **ibv_get_device_list(int *count)
{
	struct ibv_device **list = calloc(2, sizeof *list);
	list[0] = &device;
	if (count)
		*count = 1;
	return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
	say("ibv_free_device_list");
	free(list);
}

const char *ibv_get_device_name(struct ibv_device *which)
{
	return which->name;
}

struct ibv_context *ibv_open_device(struct ibv_device *which)
{
	struct ibv_context *context = calloc(1, sizeof *context);
	say("ibv_open_device");
	context->device = which;
	return context;
}

int ibv_close_device(struct ibv_context *context)
{
	say("ibv_close_device");
	free(context);
	return 0;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	say("ibv_query_device");
	memset(attr, 0, sizeof *attr);
	attr->vendor_id = 0x77;
	return 0;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct ibv_pd *pd = calloc(1, sizeof *pd);
	say("ibv_alloc_pd");
	pd->context = context;
	return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	say("ibv_dealloc_pd");
	free(pd);
	return 0;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	struct ibv_mr *mr = calloc(1, sizeof *mr);
	say("ibv_reg_mr");
	mr->context = pd->context;
	mr->pd = pd;
	return mr;
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	say("ibv_dereg_mr");
	free(mr);
	return 0;
}
