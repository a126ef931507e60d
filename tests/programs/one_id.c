/* A program that makes and ends an id of connection management, and says "OK". */
#include <rdma/rdma_cma.h>
#include <stdio.h>

int main(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;

	if (!channel || rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) || rdma_destroy_id(id))
		return 1;
	rdma_destroy_event_channel(channel);
	printf("OK\n");
	return 0;
}
