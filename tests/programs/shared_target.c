/*
 * Extended reliable connections across processes. One process makes a domain by a file, and in it the queue pair that takes requests;
 * a second opens both and has the shared receive queue; a third sends. Then the first is killed: the connection goes on as long as
 * the second has it. Ends with 0 if all was as it must be.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define MUST(call) do { if (!(call)) { printf("%s: %s failed: %s\n", role, #call, strerror(errno)); exit(2); } } while (0)

static const char *role = "sender";
static struct ibv_context *context;
static struct ibv_cq *cq;
static union ibv_gid gid;

static void open_device(void)
{
	struct ibv_device **list;

	MUST(list = ibv_get_device_list(NULL));
	MUST(list[0]);
	MUST(context = ibv_open_device(list[0]));
	ibv_free_device_list(list);
	MUST(!ibv_query_gid(context, 1, 0, &gid));
	MUST(cq = ibv_create_cq(context, 16, NULL, NULL, 0));
}

static struct ibv_xrcd *open_domain(int fd, int flags)
{
	struct ibv_xrcd_init_attr attr = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = fd, .oflags = flags
	};
	struct ibv_xrcd *xrcd;

	MUST(xrcd = ibv_open_xrcd(context, &attr));
	return xrcd;
}

/* The two ends have different attributes on the way. */
static void connect_to(struct ibv_qp *qp, uint32_t peer, int is_target)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer, .rq_psn = 7, .sq_psn = 7,
		.max_dest_rd_atomic = 1, .max_rd_atomic = 1, .min_rnr_timer = 1, .timeout = 8, .retry_cnt = 3, .rnr_retry = 7,
		.ah_attr = {.is_global = 1, .grh = {.dgid = gid}, .port_num = 1},
	};
	int ready = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	int send = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_SQ_PSN;

	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS));
	attr.qp_state = IBV_QPS_RTR;
	MUST(!ibv_modify_qp(qp, &attr, ready | (is_target ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)));
	attr.qp_state = IBV_QPS_RTS;
	MUST(!ibv_modify_qp(qp, &attr, send | (is_target ? 0 : IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC)));
}

static struct ibv_wc completion(void)
{
	struct ibv_wc wc;
	int found;

	while (!(found = ibv_poll_cq(cq, 1, &wc)))
		;
	MUST(found == 1);
	return wc;
}

static uint32_t hear(int from)
{
	uint32_t value;

	MUST(read(from, &value, sizeof(value)) == sizeof(value));
	return value;
}

static void tell(int to, uint32_t value)
{
	MUST(write(to, &value, sizeof(value)) == sizeof(value));
}

/* Makes domain and target, connects the target, and waits to be killed. */
static void make(int file, int parent)
{
	struct ibv_qp_init_attr_ex init = {.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD};
	struct ibv_qp *qp;

	role = "maker";
	open_device();
	init.xrcd = open_domain(file, O_CREAT | O_EXCL);
	MUST(qp = ibv_create_qp_ex(context, &init));
	tell(parent, qp->qp_num);
	connect_to(qp, hear(parent), 1);
	tell(parent, 0);
	pause();
}

/* Has the queue that requests name, and the target too. */
static void receive(int file, int parent)
{
	struct ibv_srq_init_attr_ex init = {
		.attr = {.max_wr = 4, .max_sge = 1}, .srq_type = IBV_SRQT_XRC,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
	};
	struct ibv_qp_open_attr target = {
		.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE, .qp_type = IBV_QPT_XRC_RECV,
	};
	static char memory[2][64];
	struct ibv_sge sge = {.length = sizeof(memory[0])};
	struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
	struct ibv_srq *srq;
	struct ibv_mr *mr;
	struct ibv_qp *qp;
	uint32_t number;

	role = "receiver";
	open_device();
	target.xrcd = init.xrcd = open_domain(file, 0);
	target.qp_num = hear(parent);
	init.cq = cq;
	MUST(init.pd = ibv_alloc_pd(context));
	MUST(mr = ibv_reg_mr(init.pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE));
	MUST(srq = ibv_create_srq_ex(context, &init));
	MUST(!ibv_get_srq_num(srq, &number));
	MUST(qp = ibv_open_qp(context, &target));
	tell(parent, number);
	for (int n = 0; n < 2; n++) {
		/* Not before the sender has sent, so that it waits for the receive. */
		hear(parent);
		wr.wr_id = n;
		sge.addr = (uintptr_t)memory[n];
		sge.lkey = mr->lkey;
		MUST(!ibv_post_srq_recv(srq, &wr, &bad));
		struct ibv_wc wc = completion();
		MUST(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.wr_id == n && wc.byte_len == 6);
		MUST(wc.qp_num == target.qp_num);
		MUST(!memcmp(memory[n], n ? "second" : "first", 5));
		tell(parent, n);
	}
	MUST(ibv_close_xrcd(init.xrcd) == EBUSY);
	MUST(!ibv_destroy_qp(qp));
	MUST(ibv_close_xrcd(init.xrcd) == EBUSY);
	MUST(!ibv_destroy_srq(srq));
	MUST(!ibv_close_xrcd(init.xrcd));
	MUST(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(init.pd) && !ibv_destroy_cq(cq) && !ibv_close_device(context));
	exit(0);
}

static pid_t start(void (*what)(int, int), int file, int *channel)
{
	int ends[2];
	pid_t child;

	MUST(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
	MUST((child = fork()) >= 0);
	if (!child)
		what(file, ends[1]);
	close(ends[1]);
	*channel = ends[0];
	return child;
}

int main(void)
{
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_XRC_SEND, .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.cap = {.max_send_wr = 4, .max_send_sge = 1}, .send_ops_flags = IBV_QP_EX_WITH_SEND, .sq_sig_all = 1,
	};
	int file = memfd_create("domain", 0), maker, receiver, status;
	struct ibv_send_wr wr = {.opcode = IBV_WR_SEND, .num_sge = 1}, *bad;
	char message[] = "first!";
	struct ibv_sge sge = {.addr = (uintptr_t)message, .length = 6};
	pid_t made_by, received_by;
	struct ibv_qp_ex *calls;
	struct ibv_mr *mr;
	struct ibv_qp *qp;
	uint32_t target;

	made_by = start(make, file, &maker);
	target = hear(maker);
	received_by = start(receive, file, &receiver);
	open_device();
	init.send_cq = cq;
	MUST(init.pd = ibv_alloc_pd(context));
	MUST(mr = ibv_reg_mr(init.pd, message, sizeof(message), 0));
	MUST(qp = ibv_create_qp_ex(context, &init));
	MUST(calls = ibv_qp_to_qp_ex(qp));
	tell(maker, qp->qp_num);
	hear(maker);
	connect_to(qp, target, 0);
	tell(receiver, target);
	wr.qp_type.xrc.remote_srqn = hear(receiver);
	wr.sg_list = &sge;
	sge.lkey = mr->lkey;

	MUST(!ibv_post_send(qp, &wr, &bad));
	tell(receiver, 0);
	MUST(completion().status == IBV_WC_SUCCESS);
	hear(receiver);
	MUST(!kill(made_by, SIGKILL));
	MUST(waitpid(made_by, &status, 0) == made_by);
	memcpy(message, "second", 6);
	ibv_wr_start(calls);
	calls->wr_id = 2;
	ibv_wr_send(calls);
	ibv_wr_set_xrc_srqn(calls, wr.qp_type.xrc.remote_srqn);
	ibv_wr_set_sge(calls, mr->lkey, (uintptr_t)message, 6);
	MUST(!ibv_wr_complete(calls));
	tell(receiver, 1);
	MUST(completion().status == IBV_WC_SUCCESS);
	hear(receiver);

	/* Nobody has the target any more. */
	MUST(waitpid(received_by, &status, 0) == received_by && status == 0);
	MUST(!ibv_post_send(qp, &wr, &bad));
	MUST(completion().status == IBV_WC_RETRY_EXC_ERR);
	MUST(!ibv_destroy_qp(qp) && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(init.pd) && !ibv_destroy_cq(cq) && !ibv_close_device(context));
	printf("OK\n");
	return 0;
}
