/*
 * Stands in for the distribution's librdmacm.so.1 on a host that has another RDMA device: for each call a line on standard output.
 */
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>

static void say(const char *call)
{
	printf("other library: %s\n", call);
	fflush(stdout);
}

struct rdma_event_channel *rdma_create_event_channel(void)
{
	say("rdma_create_event_channel");
	return calloc(1, sizeof(struct rdma_event_channel));
}

void rdma_destroy_event_channel(struct rdma_event_channel *channel)
{
	say("rdma_destroy_event_channel");
	free(channel);
}

int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context, enum rdma_port_space ps)
{
	say("rdma_create_id");
	*id = calloc(1, sizeof **id);
	(*id)->channel = channel;
	(*id)->context = context;
	(*id)->ps = ps;
	return 0;
}

int rdma_destroy_id(struct rdma_cm_id *id)
{
	say("rdma_destroy_id");
	free(id);
	return 0;
}
