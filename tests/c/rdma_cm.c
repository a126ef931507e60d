/*
 * What rdma_cm(7) and its manual pages promise, asked from a C program through the installed header: arguments that are refused, and
 * with which errno; descriptors that can be polled; events that hold their ids; ids that move.
 *
 * Usage: rdma_cm ADDRESS, an address of the device. Ends with status 0 and "all held", or says what did not hold.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <rdma/rdma_cma.h>

#define HOLDS(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "line %d: %s does not hold, errno %d (%s)\n", __LINE__, #condition, errno, strerror(errno)); \
			exit(1); \
		} \
	} while (0)

#define FAILS(call, error) \
	do { \
		errno = 0; \
		int result_ = (call); \
		if (result_ != -1 || errno != (error)) { \
			fprintf(stderr, "line %d: %s gives %d, errno %d (%s), instead of -1, %s\n", __LINE__, #call, result_, errno, \
				strerror(errno), #error); \
			exit(1); \
		} \
	} while (0)

static struct sockaddr_in own;

static struct sockaddr *address(const char *text, int port)
{
	static struct sockaddr_in in;
	memset(&in, 0, sizeof in);
	in.sin_family = AF_INET;
	in.sin_port = htons(port);
	inet_pton(AF_INET, text, &in.sin_addr);
	return (struct sockaddr *)&in;
}

static struct sockaddr *own_address(int port)
{
	own.sin_port = htons(port);
	return (struct sockaddr *)&own;
}

static struct rdma_cm_event *expect(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;
	HOLDS(rdma_get_cm_event(channel, &event) == 0);
	if (event->event != type) {
		fprintf(stderr, "%s (status %d) instead of %s\n", rdma_event_str(event->event), event->status, rdma_event_str(type));
		exit(1);
	}
	return event;
}

static int readable(struct rdma_event_channel *channel, int timeout)
{
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	return poll(&fd, 1, timeout);
}

static void arguments(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *id, *other;
	struct rdma_cm_event *event;
	struct rdma_conn_param param = { .private_data_len = 57 };
	char data[256] = { 0 };
	uint8_t byte = 40;
	int one = 1;

	FAILS(rdma_create_id(channel, NULL, NULL, RDMA_PS_TCP), EINVAL);
	FAILS(rdma_create_id(channel, &id, NULL, (enum rdma_port_space)77), EINVAL);
	FAILS(rdma_destroy_id(NULL), EINVAL);
	FAILS(rdma_get_cm_event(NULL, &event), EINVAL);
	FAILS(rdma_get_cm_event(channel, NULL), EINVAL);
	FAILS(rdma_ack_cm_event(NULL), EINVAL);
	HOLDS(rdma_create_id(channel, &id, data, RDMA_PS_TCP) == 0);
	HOLDS(id->channel == channel && id->context == data && id->ps == RDMA_PS_TCP && id->verbs == NULL && id->qp == NULL);
	HOLDS(rdma_get_src_port(id) == 0 && rdma_get_dst_port(id) == 0);
	FAILS(rdma_bind_addr(id, NULL), EINVAL);
	FAILS(rdma_bind_addr(id, address("198.51.100.77", 0)), ENODEV);
	FAILS(rdma_resolve_addr(id, NULL, NULL, 100), EINVAL);
	FAILS(rdma_resolve_route(id, 100), EINVAL);
	FAILS(rdma_connect(id, NULL), EINVAL);
	FAILS(rdma_accept(id, NULL), EINVAL);
	FAILS(rdma_reject(id, NULL, 0), EINVAL);
	FAILS(rdma_disconnect(id), EINVAL);
	FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &one, sizeof one), EINVAL);
	FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &byte, 1), EINVAL);
	FAILS(rdma_set_option(id, 99, 0, &byte, 1), ENOSYS);
	byte = 14;
	HOLDS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &byte, 1) == 0);
	HOLDS(rdma_bind_addr(id, own_address(7471)) == 0);
	HOLDS(id->verbs != NULL && id->pd != NULL && id->port_num == 1 && rdma_get_src_port(id) == htons(7471));
	HOLDS(memcmp(rdma_get_local_addr(id), own_address(7471), sizeof own) == 0);
	FAILS(rdma_bind_addr(id, own_address(7472)), EINVAL);
	HOLDS(rdma_create_id(channel, &other, NULL, RDMA_PS_TCP) == 0);
	FAILS(rdma_bind_addr(other, own_address(7471)), EADDRINUSE);
	HOLDS(rdma_listen(id, 4) == 0);
	FAILS(rdma_listen(id, 4), EINVAL);
	FAILS(rdma_connect(id, NULL), EINVAL);

	HOLDS(rdma_resolve_addr(other, NULL, own_address(7471), 1000) == 0);
	HOLDS(rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED)) == 0);
	HOLDS(other->verbs == id->verbs && rdma_get_dst_port(other) == htons(7471) && rdma_get_src_port(other) != 0);
	HOLDS(rdma_resolve_route(other, 1000) == 0);
	HOLDS(rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED)) == 0);
	HOLDS(other->route.num_paths == 1 && other->route.path_rec->mtu >= IBV_MTU_256);
	FAILS(rdma_connect(other, &param), EINVAL);
	param.private_data = data;
	FAILS(rdma_connect(other, &param), EINVAL);
	/* A program may clean up before it tells what had failed. */
	errno = ENOENT;
	HOLDS(rdma_destroy_id(other) == 0 && errno == ENOENT);
	HOLDS(rdma_destroy_id(id) == 0);
}

/* No object, or one that is not ready for the call. */
static void no_object(struct rdma_event_channel *channel)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	struct rdma_conn_param param = { 0 };
	struct rdma_addrinfo *info;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT };
	struct rdma_cm_id *id, *other;
	int mask;

	FAILS(rdma_bind_addr(NULL, own_address(0)), EINVAL);
	FAILS(rdma_resolve_addr(NULL, NULL, own_address(7471), 100), EINVAL);
	FAILS(rdma_resolve_route(NULL, 100), EINVAL);
	FAILS(rdma_listen(NULL, 1), EINVAL);
	FAILS(rdma_connect(NULL, &param), EINVAL);
	FAILS(rdma_accept(NULL, &param), EINVAL);
	FAILS(rdma_reject(NULL, NULL, 0), EINVAL);
	FAILS(rdma_establish(NULL), EINVAL);
	FAILS(rdma_notify(NULL, IBV_EVENT_COMM_EST), EINVAL);
	FAILS(rdma_disconnect(NULL), EINVAL);
	FAILS(rdma_create_qp(NULL, NULL, &init), EINVAL);
	FAILS(rdma_init_qp_attr(NULL, &attr, &mask), EINVAL);
	FAILS(rdma_migrate_id(NULL, channel), EINVAL);
	FAILS(rdma_get_request(NULL, &other), EINVAL);
	FAILS(rdma_join_multicast(NULL, address("239.1.2.3", 0), NULL), EINVAL);
	FAILS(rdma_leave_multicast(NULL, address("239.1.2.3", 0)), EINVAL);
	FAILS(rdma_create_ep(NULL, NULL, NULL, NULL), EINVAL);
	FAILS(rdma_getaddrinfo(NULL, NULL, NULL, &info), EINVAL);

	HOLDS(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	FAILS(rdma_create_qp(id, NULL, &init), EINVAL);
	FAILS(rdma_create_qp(id, NULL, NULL), EINVAL);
	attr.qp_state = IBV_QPS_RTR;
	FAILS(rdma_init_qp_attr(id, &attr, &mask), EINVAL);
	FAILS(rdma_establish(id), EINVAL);
	FAILS(rdma_get_request(id, &other), EINVAL);
	FAILS(rdma_notify(id, IBV_EVENT_PATH_MIG), EINVAL);
	/* Groups are for datagrams. */
	FAILS(rdma_resolve_addr(id, NULL, address("239.1.2.3", 0), 100), EINVAL);
	HOLDS(rdma_bind_addr(id, own_address(0)) == 0);
	FAILS(rdma_join_multicast(id, address("239.1.2.3", 0), NULL), EINVAL);
	HOLDS(rdma_destroy_id(id) == 0);
}

/* Groups: joined by datagram ids, told with the program's own value, left once. */
static void groups(struct rdma_event_channel *channel)
{
	struct rdma_cm_join_mc_attr_ex attr = { .comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS };
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	HOLDS(rdma_create_id(channel, &id, NULL, RDMA_PS_UDP) == 0);
	FAILS(rdma_join_multicast(id, address("239.1.2.3", 0), NULL), EINVAL);
	HOLDS(rdma_bind_addr(id, own_address(0)) == 0);
	FAILS(rdma_join_multicast(id, address("192.0.2.1", 0), NULL), EINVAL);
	FAILS(rdma_join_multicast(id, NULL, NULL), EINVAL);
	FAILS(rdma_join_multicast_ex(id, NULL, NULL), EINVAL);
	attr.addr = address("239.1.2.3", 0);
	FAILS(rdma_join_multicast_ex(id, &attr, NULL), EINVAL);
	attr.comp_mask |= RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
	attr.join_flags = RDMA_MC_JOIN_FLAG_RESERVED;
	FAILS(rdma_join_multicast_ex(id, &attr, NULL), EINVAL);
	FAILS(rdma_leave_multicast(id, attr.addr), EADDRNOTAVAIL);
	attr.join_flags = RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER;
	HOLDS(rdma_join_multicast_ex(id, &attr, &attr) == 0);
	event = expect(channel, RDMA_CM_EVENT_MULTICAST_JOIN);
	HOLDS(event->id == id && event->status == 0 && event->param.ud.private_data == &attr);
	HOLDS(event->param.ud.qp_num == 0xFFFFFF && event->param.ud.ah_attr.grh.dgid.raw[12] == 239);
	HOLDS(rdma_ack_cm_event(event) == 0);
	FAILS(rdma_join_multicast(id, attr.addr, NULL), EADDRINUSE);
	HOLDS(rdma_leave_multicast(id, attr.addr) == 0);
	FAILS(rdma_leave_multicast(id, attr.addr), EADDRNOTAVAIL);
	HOLDS(rdma_destroy_id(id) == 0);
}

static void *acknowledge_later(void *event)
{
	usleep(50000);
	__atomic_store_n((int *)((struct rdma_cm_event *)event)->id->context, 1, __ATOMIC_SEQ_CST);
	rdma_ack_cm_event(event);
	return NULL;
}

static void channels(struct rdma_event_channel *channel)
{
	struct rdma_event_channel *second = rdma_create_event_channel();
	struct rdma_cm_id *id;
	struct rdma_cm_event *event;
	pthread_t thread;
	int acknowledged = 0;

	HOLDS(second != NULL && readable(channel, 0) == 0);
	HOLDS(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK) == 0);
	FAILS(rdma_get_cm_event(channel, &event), EAGAIN);
	HOLDS(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) & ~O_NONBLOCK) == 0);

	/* An event moves with its id. */
	HOLDS(rdma_create_id(channel, &id, &acknowledged, RDMA_PS_TCP) == 0);
	HOLDS(rdma_resolve_addr(id, NULL, own_address(7471), 1000) == 0);
	HOLDS(readable(channel, 1000) == 1);
	HOLDS(rdma_migrate_id(id, second) == 0);
	HOLDS(id->channel == second && readable(channel, 0) == 0 && readable(second, 0) == 1);

	/* Ending an id waits for the acknowledgement of its events. */
	event = expect(second, RDMA_CM_EVENT_ADDR_RESOLVED);
	HOLDS(event->id == id && event->listen_id == NULL && event->status == 0 && readable(second, 0) == 0);
	HOLDS(pthread_create(&thread, NULL, acknowledge_later, event) == 0);
	HOLDS(rdma_destroy_id(id) == 0);
	HOLDS(__atomic_load_n(&acknowledged, __ATOMIC_SEQ_CST) == 1);
	pthread_join(thread, NULL);

	/* One that nobody has got is dropped with its id. */
	HOLDS(rdma_create_id(second, &id, NULL, RDMA_PS_TCP) == 0);
	HOLDS(rdma_resolve_addr(id, NULL, own_address(7471), 1000) == 0);
	HOLDS(rdma_destroy_id(id) == 0);
	HOLDS(readable(second, 0) == 0);
	rdma_destroy_event_channel(second);
}

/* A connection without queue pairs of the library's: attributes by rdma_init_qp_attr, rejection and private data. */
static void conversation(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *listener, *active, *passive;
	struct rdma_cm_event *event;
	struct rdma_conn_param param = { .private_data = "hello", .private_data_len = 5, .responder_resources = 3,
		.initiator_depth = 2, .retry_count = 5, .rnr_retry_count = 6, .qp_num = 0x1234 };
	struct ibv_qp_attr attr;
	uint32_t first_psn;
	int mask;

	HOLDS(rdma_create_id(channel, &listener, &own, RDMA_PS_TCP) == 0);
	HOLDS(rdma_bind_addr(listener, address("0.0.0.0", 0)) == 0);
	HOLDS(rdma_listen(listener, 0) == 0);
	for (int accepts = 0; accepts < 2; accepts++) {
		HOLDS(rdma_create_id(channel, &active, NULL, RDMA_PS_TCP) == 0);
		HOLDS(rdma_resolve_addr(active, NULL, own_address(ntohs(rdma_get_src_port(listener))), 1000) == 0);
		HOLDS(rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED)) == 0);
		HOLDS(rdma_resolve_route(active, 1000) == 0);
		HOLDS(rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED)) == 0);
		param.qp_num++;
		HOLDS(rdma_connect(active, &param) == 0);
		event = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
		passive = event->id;
		HOLDS(event->listen_id == listener && passive->context == &own && passive->verbs != NULL);
		HOLDS(event->param.conn.private_data_len == 56 && memcmp(event->param.conn.private_data, "hello", 6) == 0);
		HOLDS(event->param.conn.qp_num == param.qp_num && event->param.conn.responder_resources == 2);
		HOLDS(event->param.conn.initiator_depth == 3 && event->param.conn.retry_count == 5);
		HOLDS(rdma_get_dst_port(passive) == rdma_get_src_port(active));
		HOLDS(rdma_ack_cm_event(event) == 0);
		if (!accepts) {
			HOLDS(rdma_reject(passive, "no", 2) == 0);
			event = expect(channel, RDMA_CM_EVENT_REJECTED);
			HOLDS(event->id == active && event->status == 28);
			HOLDS(event->param.conn.private_data_len == 148 && memcmp(event->param.conn.private_data, "no", 3) == 0);
			HOLDS(rdma_ack_cm_event(event) == 0);
			HOLDS(rdma_destroy_id(passive) == 0 && rdma_destroy_id(active) == 0);
		}
	}
	attr.qp_state = IBV_QPS_INIT;
	HOLDS(rdma_init_qp_attr(passive, &attr, &mask) == 0);
	HOLDS(mask == (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) && attr.port_num == 1);
	attr.qp_state = IBV_QPS_SQD;
	FAILS(rdma_init_qp_attr(passive, &attr, &mask), EINVAL);
	param.qp_num = 0x4321;
	param.private_data = "welcome";
	param.private_data_len = 7;
	/* A program may connect its queue pair before it accepts. */
	attr.qp_state = IBV_QPS_RTS;
	HOLDS(rdma_init_qp_attr(passive, &attr, &mask) == 0);
	first_psn = attr.sq_psn;
	HOLDS(rdma_accept(passive, &param) == 0);
	attr.qp_state = IBV_QPS_RTR;
	HOLDS(rdma_init_qp_attr(passive, &attr, &mask) == 0);
	HOLDS(attr.dest_qp_num == 0x1236 && attr.max_dest_rd_atomic == 2 && (mask & IBV_QP_AV) && attr.ah_attr.is_global);
	event = expect(channel, RDMA_CM_EVENT_CONNECT_RESPONSE);
	HOLDS(event->id == active && event->param.conn.qp_num == 0x4321 && event->param.conn.private_data_len == 196);
	HOLDS(memcmp(event->param.conn.private_data, "welcome", 8) == 0);
	HOLDS(rdma_ack_cm_event(event) == 0);
	attr.qp_state = IBV_QPS_RTR;
	HOLDS(rdma_init_qp_attr(active, &attr, &mask) == 0);
	HOLDS(attr.dest_qp_num == 0x4321 && attr.rq_psn == first_psn);
	attr.qp_state = IBV_QPS_RTS;
	HOLDS(rdma_init_qp_attr(active, &attr, &mask) == 0);
	HOLDS(attr.retry_cnt == 5 && attr.rnr_retry == 6 && attr.max_rd_atomic == 2);
	HOLDS(rdma_establish(active) == 0);
	event = expect(channel, RDMA_CM_EVENT_ESTABLISHED);
	HOLDS(event->id == passive);
	HOLDS(rdma_ack_cm_event(event) == 0);
	HOLDS(rdma_disconnect(active) == 0);
	HOLDS(rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_DISCONNECTED)) == 0);
	HOLDS(rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_DISCONNECTED)) == 0);
	HOLDS(rdma_disconnect(passive) == 0);
	HOLDS(rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_TIMEWAIT_EXIT)) == 0);
	HOLDS(rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_TIMEWAIT_EXIT)) == 0);
	HOLDS(rdma_destroy_id(passive) == 0 && rdma_destroy_id(active) == 0 && rdma_destroy_id(listener) == 0);
}

static struct rdma_cm_id *connecting(struct rdma_event_channel *channel, int port, uint32_t qp_num)
{
	struct rdma_conn_param param = { .qp_num = qp_num };
	struct rdma_cm_id *id;
	HOLDS(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	HOLDS(rdma_resolve_addr(id, NULL, own_address(port), 1000) == 0);
	HOLDS(rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED)) == 0);
	HOLDS(rdma_resolve_route(id, 1000) == 0);
	HOLDS(rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED)) == 0);
	HOLDS(rdma_connect(id, &param) == 0);
	return id;
}

/* What nobody has got ends with its id: no descriptor stays readable for it, and requests are refused. */
static void leftovers(struct rdma_event_channel *channel)
{
	struct rdma_event_channel *second = rdma_create_event_channel();
	struct rdma_cm_id *listener, *ids[4], *passive;
	struct rdma_cm_event *event;

	ids[0] = connecting(channel, 7999, 0x100);
	HOLDS(readable(channel, 10000) == 1);
	HOLDS(rdma_destroy_id(ids[0]) == 0);
	HOLDS(readable(channel, 0) == 0);

	HOLDS(rdma_create_id(second, &listener, NULL, RDMA_PS_TCP) == 0);
	HOLDS(rdma_bind_addr(listener, own_address(7473)) == 0);
	HOLDS(rdma_listen(listener, 0) == 0);
	for (int i = 0; i < 4; i++) {
		ids[i] = connecting(channel, 7473, 0x200 + i);
	}
	event = expect(second, RDMA_CM_EVENT_CONNECT_REQUEST);
	passive = event->id;
	HOLDS(rdma_ack_cm_event(event) == 0);
	HOLDS(rdma_destroy_id(listener) == 0);
	for (int i = 0; i < 3; i++) {
		HOLDS(rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_REJECTED)) == 0);
	}
	HOLDS(readable(second, 0) == 0);
	HOLDS(rdma_reject(passive, NULL, 0) == 0 && rdma_destroy_id(passive) == 0);
	HOLDS(rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_REJECTED)) == 0);
	for (int i = 0; i < 4; i++) {
		HOLDS(rdma_destroy_id(ids[i]) == 0);
	}
	rdma_destroy_event_channel(second);
}

/* Nobody listens: a synchronous id says so with its call. */
static void refusal(void)
{
	struct rdma_cm_id *id;
	HOLDS(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == 0);
	HOLDS(rdma_resolve_addr(id, NULL, own_address(7999), 1000) == 0 && id->event->event == RDMA_CM_EVENT_ADDR_RESOLVED);
	HOLDS(rdma_resolve_route(id, 1000) == 0);
	FAILS(rdma_connect(id, NULL), ECONNREFUSED);
	HOLDS(id->event->event == RDMA_CM_EVENT_REJECTED && id->event->status == 8);
	HOLDS(rdma_destroy_id(id) == 0);
}

int main(int argc, char **argv)
{
	struct rdma_event_channel *channel;
	if (argc != 2) {
		return 2;
	}
	memcpy(&own, address(argv[1], 0), sizeof own);
	channel = rdma_create_event_channel();
	HOLDS(channel != NULL);
	arguments(channel);
	no_object(channel);
	groups(channel);
	channels(channel);
	conversation(channel);
	leftovers(channel);
	refusal();
	HOLDS(readable(channel, 0) == 0);
	rdma_destroy_event_channel(channel);
	puts("all held");
	return 0;
}
