/*
 * Calls verbs with arguments that they must refuse, and compares the error with what the manual says: no object, objects of another
 * context, values out of range, wrong states, objects in use. Prints each answer that differs; ends with 0 if there is none.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int calls, differ;

static void compare(const char *call, long result, int error, long wanted_result, int wanted_error)
{
	calls++;
	if (result == wanted_result && error == wanted_error)
		return;
	differ++;
	printf("%s: %ld with errno %d (%s) instead of %ld with errno %d (%s)\n", call, result, error, strerror(error), wanted_result,
	       wanted_error, strerror(wanted_error));
}

/* Verbs that return the error number, -1 with errno, a null pointer with errno. */
#define CODE(wanted, call) do { errno = 0; long r = (call); compare(#call, r, (int)r, wanted, wanted); } while (0)
#define MINUS(wanted, call) do { errno = 0; long r = (call); compare(#call, r, errno, -1, wanted); } while (0)
#define RESULT(result, wanted, call) do { errno = 0; long r = (call); compare(#call, r, errno, result, wanted); } while (0)
#define NIL(wanted, call) do { errno = 0; long r = (long)(intptr_t)(call); compare(#call, r, errno, 0, wanted); } while (0)
#define MUST(call) do { if (!(call)) { printf("%s failed: %s\n", #call, strerror(errno)); return 2; } } while (0)

static void no_object(void)
{
	struct ibv_device_attr device;
	struct ibv_port_attr port;
	union ibv_gid gid;
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init = {0};
	struct ibv_cq *cq;
	struct ibv_async_event event;
	void *value;
	__be16 pkey;

	NIL(EINVAL, ibv_open_device(NULL));
	MINUS(EINVAL, ibv_close_device(NULL));
	CODE(EINVAL, ibv_query_device(NULL, &device));
	CODE(EINVAL, (ibv_query_port)(NULL, 1, (void *)&port));
	MINUS(EINVAL, ibv_query_gid(NULL, 1, 0, &gid));
	MINUS(EINVAL, ibv_query_pkey(NULL, 1, 0, &pkey));
	MINUS(EINVAL, ibv_get_async_event(NULL, &event));
	NIL(EINVAL, ibv_alloc_pd(NULL));
	CODE(EINVAL, ibv_dealloc_pd(NULL));
	NIL(EINVAL, (ibv_reg_mr)(NULL, &device, 8, 0));
	NIL(EINVAL, ibv_reg_mr_iova2(NULL, &device, 8, 0, 0));
	NIL(EINVAL, ibv_reg_dmabuf_mr(NULL, 0, 8, 0, 0, 0));
	RESULT(IBV_REREG_MR_ERR_INPUT, EINVAL, ibv_rereg_mr(NULL, 1, NULL, NULL, 0, 0));
	CODE(EINVAL, ibv_dereg_mr(NULL));
	NIL(EINVAL, ibv_create_comp_channel(NULL));
	CODE(EINVAL, ibv_destroy_comp_channel(NULL));
	MINUS(EINVAL, ibv_get_cq_event(NULL, &cq, &value));
	NIL(EINVAL, ibv_create_cq(NULL, 1, NULL, NULL, 0));
	CODE(EINVAL, ibv_resize_cq(NULL, 1));
	CODE(EINVAL, ibv_destroy_cq(NULL));
	NIL(EINVAL, ibv_create_qp(NULL, &init));
	CODE(EINVAL, ibv_modify_qp(NULL, &attr, 0));
	CODE(EINVAL, ibv_query_qp(NULL, &attr, 0, &init));
	CODE(EINVAL, ibv_destroy_qp(NULL));
	CODE(EINVAL, ibv_query_ece(NULL, NULL));
	CODE(EINVAL, ibv_set_ece(NULL, NULL));
	CODE(EINVAL, ibv_attach_mcast(NULL, &gid, 0));
	CODE(EINVAL, ibv_detach_mcast(NULL, &gid, 0));
	NIL(EINVAL, ibv_create_ah(NULL, NULL));
	CODE(EINVAL, ibv_destroy_ah(NULL));
	NIL(EINVAL, ibv_create_srq(NULL, NULL));
	CODE(EINVAL, ibv_modify_srq(NULL, NULL, 0));
	CODE(EINVAL, ibv_query_srq(NULL, NULL));
	CODE(EINVAL, ibv_destroy_srq(NULL));
	NIL(EINVAL, ibv_import_pd(NULL, 0));
	NIL(EINVAL, ibv_import_mr(NULL, 0));
}

static void queries(struct ibv_context *context)
{
	struct ibv_port_attr port;
	struct ibv_gid_entry entry;
	struct ibv_values_ex values = {.comp_mask = 2};
	struct ibv_query_device_ex_input input = {.comp_mask = 1};
	struct ibv_device_attr_ex device;
	union ibv_gid gid;
	__be16 pkey;

	CODE(EINVAL, ibv_query_device(context, NULL));
	CODE(EINVAL, ibv_query_device_ex(context, &input, &device));
	CODE(EINVAL, ibv_query_port(context, 0, &port));
	CODE(EINVAL, ibv_query_port(context, 2, &port));
	MINUS(EINVAL, ibv_query_gid(context, 1, -1, &gid));
	MINUS(EINVAL, ibv_query_gid(context, 1, 100000, &gid));
	MINUS(EINVAL, ibv_query_gid(context, 2, 0, &gid));
	CODE(EINVAL, ibv_query_gid_ex(context, 2, 0, &entry, 0));
	CODE(EINVAL, ibv_query_gid_ex(context, 1, 0, &entry, 1));
	RESULT(-EINVAL, 0, ibv_query_gid_table(context, &entry, 0, 0));
	MINUS(EINVAL, ibv_query_pkey(context, 1, 1, &pkey));
	MINUS(EINVAL, ibv_query_pkey(context, 2, 0, &pkey));
	MINUS(EINVAL, ibv_get_pkey_index(context, 1, htobe16(0x1234)));
	CODE(EINVAL, ibv_query_rt_values_ex(context, &values));
}

static int memory(struct ibv_context *context, struct ibv_context *other)
{
	static char buffer[8192];
	char *unmapped = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_pd *pd, *foreign;
	struct ibv_mr *mr;
	int fd = memfd_create("bad-arguments", 0);

	MUST(pd = ibv_alloc_pd(context));
	MUST(foreign = ibv_alloc_pd(other));
	munmap(unmapped, 8192);
	NIL(EINVAL, ibv_reg_mr(pd, buffer, 0, IBV_ACCESS_LOCAL_WRITE));
	NIL(EINVAL, ibv_reg_mr(pd, buffer, 64, IBV_ACCESS_REMOTE_WRITE));
	NIL(EINVAL, ibv_reg_mr(pd, buffer, 64, IBV_ACCESS_REMOTE_ATOMIC));
	NIL(EINVAL, ibv_reg_mr(pd, buffer, 64, 1 << 10));
	NIL(EINVAL, ibv_reg_mr(pd, buffer, SIZE_MAX, IBV_ACCESS_LOCAL_WRITE));
	NIL(EINVAL, ibv_reg_mr_iova(pd, buffer, 64, UINT64_MAX - 8, IBV_ACCESS_LOCAL_WRITE));
	NIL(EFAULT, ibv_reg_mr(pd, unmapped, 64, IBV_ACCESS_LOCAL_WRITE));
	NIL(EOPNOTSUPP, ibv_reg_dmabuf_mr(pd, 0, 64, 0, -1, IBV_ACCESS_LOCAL_WRITE));
	NIL(EBADF, ibv_reg_dmabuf_mr(pd, 0, 64, 0, 9999, IBV_ACCESS_LOCAL_WRITE));
	NIL(EINVAL, ibv_reg_dmabuf_mr(pd, 0, 0, 0, fd, IBV_ACCESS_LOCAL_WRITE));
	NIL(EBADF, ibv_import_device(-1));
	NIL(EOPNOTSUPP, ibv_import_device(fd));
	NIL(EOPNOTSUPP, ibv_import_pd(context, 0));
	NIL(EOPNOTSUPP, ibv_import_mr(pd, 0));

	MUST(mr = ibv_reg_mr(pd, buffer, 4096, IBV_ACCESS_LOCAL_WRITE));
	uint32_t key = mr->rkey;
	RESULT(IBV_REREG_MR_ERR_INPUT, EINVAL, ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0));
	RESULT(IBV_REREG_MR_ERR_INPUT, EINVAL, ibv_rereg_mr(mr, 1 << 5, NULL, NULL, 0, 0));
	RESULT(IBV_REREG_MR_ERR_INPUT, EINVAL, ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, 64, 0));
	RESULT(IBV_REREG_MR_ERR_INPUT, EINVAL, ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, NULL, NULL, 0, 0));
	RESULT(IBV_REREG_MR_ERR_INPUT, EINVAL, ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, foreign, NULL, 0, 0));
	RESULT(IBV_REREG_MR_ERR_INPUT, EINVAL, ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE));
	RESULT(IBV_REREG_MR_ERR_CMD, EFAULT, ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, unmapped, 64, 0));
	RESULT(0, 0, ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, buffer + 64, 128, 0));
	RESULT(1, 0, mr->rkey == key && mr->addr == buffer + 64 && mr->length == 128);
	CODE(EBUSY, ibv_dealloc_pd(pd));
	CODE(0, ibv_dereg_mr(mr));

	/* A region of nothing is for work requests alone, and stays what it is. */
	MUST(mr = ibv_alloc_null_mr(pd));
	RESULT(1, 0, mr->addr == NULL && mr->length == SIZE_MAX && mr->rkey == 0 && mr->lkey != 0);
	RESULT(IBV_REREG_MR_ERR_INPUT, EINVAL, ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE));
	CODE(EBUSY, ibv_dealloc_pd(pd));
	CODE(0, ibv_dereg_mr(mr));

	/* What can be mapped can be registered. */
	MUST(ftruncate(fd, 8192) == 0);
	MUST(mr = ibv_reg_dmabuf_mr(pd, 100, 4096, 0x1000, fd, IBV_ACCESS_LOCAL_WRITE));
	RESULT(IBV_REREG_MR_ERR_INPUT, EINVAL, ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, buffer, 64, 0));
	CODE(0, ibv_dereg_mr(mr));
	CODE(0, ibv_dealloc_pd(pd));
	CODE(0, ibv_dealloc_pd(foreign));
	close(fd);
	return 0;
}

static int domains(struct ibv_context *context, struct ibv_context *other)
{
	struct ibv_td_init_attr td_attr = {.comp_mask = 1};
	struct ibv_parent_domain_init_attr attr = {0};
	struct ibv_pd *pd, *parent, *foreign;
	struct ibv_td *td;

	NIL(EINVAL, ibv_alloc_td(context, &td_attr));
	td_attr.comp_mask = 0;
	MUST(td = ibv_alloc_td(context, &td_attr));
	MUST(pd = ibv_alloc_pd(context));
	MUST(foreign = ibv_alloc_pd(other));
	NIL(EINVAL, ibv_alloc_parent_domain(context, &attr));
	attr.pd = foreign;
	NIL(EINVAL, ibv_alloc_parent_domain(context, &attr));
	attr.pd = pd;
	attr.comp_mask = 1 << 7;
	NIL(EINVAL, ibv_alloc_parent_domain(context, &attr));
	attr.comp_mask = 0;
	attr.td = td;
	MUST(parent = ibv_alloc_parent_domain(context, &attr));
	attr.pd = parent;
	NIL(EINVAL, ibv_alloc_parent_domain(context, &attr));
	CODE(EBUSY, ibv_dealloc_td(td));
	CODE(EBUSY, ibv_dealloc_pd(pd));
	CODE(0, ibv_dealloc_pd(parent));
	CODE(0, ibv_dealloc_td(td));
	CODE(0, ibv_dealloc_pd(pd));
	CODE(0, ibv_dealloc_pd(foreign));
	return 0;
}

static int completion_queues(struct ibv_context *context, struct ibv_context *other)
{
	struct ibv_cq_init_attr_ex attr = {.cqe = 16};
	struct ibv_device_attr limits;
	struct ibv_comp_channel *channel, *foreign;
	struct ibv_async_event event;
	struct ibv_cq *cq, *ready;
	struct ibv_wc wc;
	void *value;

	CODE(0, ibv_query_device(context, &limits));
	MUST(channel = ibv_create_comp_channel(context));
	MUST(foreign = ibv_create_comp_channel(other));
	NIL(EINVAL, ibv_create_cq(context, 0, NULL, NULL, 0));
	NIL(EINVAL, ibv_create_cq(context, -1, NULL, NULL, 0));
	NIL(EINVAL, ibv_create_cq(context, limits.max_cqe + 1, NULL, NULL, 0));
	NIL(EINVAL, ibv_create_cq(context, 16, NULL, NULL, context->num_comp_vectors));
	NIL(EINVAL, ibv_create_cq(context, 16, NULL, NULL, -1));
	NIL(EINVAL, ibv_create_cq(context, 16, NULL, foreign, 0));
	attr.channel = foreign;
	NIL(EINVAL, ibv_create_cq_ex(context, &attr));
	attr.channel = NULL;
	attr.comp_mask = 1 << 7;
	NIL(EINVAL, ibv_create_cq_ex(context, &attr));
	attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
	attr.flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
	NIL(EOPNOTSUPP, ibv_create_cq_ex(context, &attr));
	attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD;
	NIL(EINVAL, ibv_create_cq_ex(context, &attr));
	attr.comp_mask = 0;
	attr.wc_flags = IBV_WC_EX_WITH_TM_INFO;
	NIL(EOPNOTSUPP, ibv_create_cq_ex(context, &attr));
	attr.wc_flags = 0;
	attr.cqe = 0;
	NIL(EINVAL, ibv_create_cq_ex(context, &attr));

	MUST(cq = ibv_create_cq(context, 16, NULL, channel, 0));
	CODE(EINVAL, ibv_resize_cq(cq, 0));
	CODE(EINVAL, ibv_resize_cq(cq, limits.max_cqe + 1));
	CODE(0, ibv_resize_cq(cq, 100));
	RESULT(1, 0, cq->cqe >= 100);
	RESULT(0, 0, ibv_poll_cq(cq, 1, &wc));
	fcntl(channel->fd, F_SETFL, O_NONBLOCK);
	MINUS(EAGAIN, ibv_get_cq_event(channel, &ready, &value));
	fcntl(context->async_fd, F_SETFL, O_NONBLOCK);
	MINUS(EAGAIN, ibv_get_async_event(context, &event));
	CODE(EBUSY, ibv_destroy_comp_channel(channel));
	CODE(0, ibv_destroy_cq(cq));
	CODE(0, ibv_destroy_comp_channel(channel));
	CODE(0, ibv_destroy_comp_channel(foreign));
	return 0;
}

static int queue_pairs(struct ibv_context *context, struct ibv_context *other)
{
	struct ibv_qp_init_attr plain = {.qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1, 16}}, init;
	struct ibv_qp_init_attr_ex extended = {.qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1, 0}};
	struct ibv_cq *cq, *foreign;
	struct ibv_qp_attr attr = {0};
	struct ibv_ece ece = {0};
	struct ibv_pd *pd;
	struct ibv_qp *qp;
	struct ibv_sge sge[2] = {{0}};
	struct ibv_send_wr send = {.opcode = IBV_WR_SEND}, *bad_send;
	struct ibv_recv_wr receive = {0}, *bad_receive;

	MUST(pd = ibv_alloc_pd(context));
	MUST(cq = ibv_create_cq(context, 16, NULL, NULL, 0));
	MUST(foreign = ibv_create_cq(other, 16, NULL, NULL, 0));
	NIL(EINVAL, ibv_create_qp(pd, NULL));
	NIL(EINVAL, ibv_create_qp(pd, &plain));
	plain.send_cq = cq;
	plain.recv_cq = foreign;
	NIL(EINVAL, ibv_create_qp(pd, &plain));
	plain.recv_cq = cq;
	plain.qp_type = IBV_QPT_RAW_PACKET;
	NIL(EOPNOTSUPP, ibv_create_qp(pd, &plain));
	plain.qp_type = IBV_QPT_RC;
	plain.cap.max_send_wr = UINT32_MAX;
	NIL(EINVAL, ibv_create_qp(pd, &plain));
	plain.cap.max_send_wr = 4;
	plain.cap.max_recv_sge = 1000;
	NIL(EINVAL, ibv_create_qp(pd, &plain));
	plain.cap.max_recv_sge = 1;
	extended.send_cq = extended.recv_cq = cq;
	NIL(EINVAL, ibv_create_qp_ex(context, &extended));
	extended.pd = pd;
	extended.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_MAX_TSO_HEADER;
	NIL(EOPNOTSUPP, ibv_create_qp_ex(context, &extended));
	extended.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
	extended.create_flags = IBV_QP_CREATE_CVLAN_STRIPPING;
	NIL(EOPNOTSUPP, ibv_create_qp_ex(context, &extended));
	extended.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	extended.send_ops_flags = IBV_QP_EX_WITH_TSO;
	NIL(EOPNOTSUPP, ibv_create_qp_ex(context, &extended));

	MUST(qp = ibv_create_qp(pd, &plain));
	NIL(0, ibv_qp_to_qp_ex(qp));
	CODE(EBUSY, ibv_destroy_cq(cq));
	CODE(EBUSY, ibv_dealloc_pd(pd));
	CODE(EOPNOTSUPP, ibv_query_ece(qp, &ece));
	CODE(EOPNOTSUPP, ibv_set_ece(qp, &ece));
	CODE(EINVAL, ibv_query_qp(qp, NULL, 0, &init));
	CODE(EINVAL, ibv_modify_qp(qp, NULL, IBV_QP_STATE));
	CODE(EINVAL, ibv_post_send(qp, &send, &bad_send));
	RESULT(1, 0, bad_send == &send);
	CODE(EINVAL, ibv_post_recv(qp, &receive, &bad_receive));
	RESULT(1, 0, bad_receive == &receive);

	attr.qp_state = IBV_QPS_RTS;
	CODE(EINVAL, ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = 77;
	CODE(EINVAL, ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_INIT;
	attr.port_num = 1;
	CODE(EINVAL, ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	const int to_init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	attr.port_num = 7;
	CODE(EINVAL, ibv_modify_qp(qp, &attr, to_init));
	attr.port_num = 1;
	attr.pkey_index = 1;
	CODE(EINVAL, ibv_modify_qp(qp, &attr, to_init));
	attr.pkey_index = 0;
	CODE(0, ibv_modify_qp(qp, &attr, to_init));
	RESULT(1, 0, qp->state == IBV_QPS_INIT);
	CODE(EINVAL, ibv_post_send(qp, &send, &bad_send));
	receive.sg_list = sge;
	receive.num_sge = 2;
	CODE(EINVAL, ibv_post_recv(qp, &receive, &bad_receive));
	receive.num_sge = -1;
	CODE(EINVAL, ibv_post_recv(qp, &receive, &bad_receive));
	receive.num_sge = 0;
	for (int posted = 0; posted < 4; posted++)
		CODE(0, ibv_post_recv(qp, &receive, &bad_receive));
	CODE(ENOMEM, ibv_post_recv(qp, &receive, &bad_receive));

	const int to_rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
			   IBV_QP_MIN_RNR_TIMER;
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = 9;
	attr.dest_qp_num = qp->qp_num;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = 1;
	CODE(0, ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid));
	CODE(EINVAL, ibv_modify_qp(qp, &attr, to_rtr));
	attr.path_mtu = IBV_MTU_1024;
	attr.ah_attr.grh.sgid_index = 200;
	CODE(EINVAL, ibv_modify_qp(qp, &attr, to_rtr));
	attr.ah_attr.grh.sgid_index = 0;
	attr.ah_attr.is_global = 0;
	CODE(EINVAL, ibv_modify_qp(qp, &attr, to_rtr));
	attr.ah_attr.is_global = 1;
	CODE(0, ibv_modify_qp(qp, &attr, to_rtr));
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 32;
	const int to_rts = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
			   IBV_QP_MAX_QP_RD_ATOMIC;
	CODE(EINVAL, ibv_modify_qp(qp, &attr, to_rts));
	attr.timeout = 14;
	attr.retry_cnt = 8;
	CODE(EINVAL, ibv_modify_qp(qp, &attr, to_rts));
	attr.retry_cnt = 7;
	CODE(0, ibv_modify_qp(qp, &attr, to_rts));
	send.opcode = 99;
	CODE(EINVAL, ibv_post_send(qp, &send, &bad_send));
	send.opcode = IBV_WR_SEND;
	send.send_flags = 1 << 20;
	CODE(EINVAL, ibv_post_send(qp, &send, &bad_send));
	send.send_flags = IBV_SEND_INLINE;
	sge[0].addr = (uintptr_t)&attr;
	sge[0].length = plain.cap.max_inline_data + 1;
	send.sg_list = sge;
	send.num_sge = 1;
	CODE(EINVAL, ibv_post_send(qp, &send, &bad_send));
	send.num_sge = 2;
	send.send_flags = 0;
	CODE(EINVAL, ibv_post_send(qp, &send, &bad_send));
	CODE(0, ibv_destroy_qp(qp));
	CODE(0, ibv_destroy_cq(cq));
	CODE(0, ibv_destroy_cq(foreign));
	CODE(0, ibv_dealloc_pd(pd));
	return 0;
}

static int shared_receive_queues(struct ibv_context *context)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_qp_init_attr with_queue = {.qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1, 0}};
	struct ibv_recv_wr receive = {0}, *bad_receive;
	struct ibv_device_attr limits;
	struct ibv_srq_attr attr;
	struct ibv_sge sge[2] = {{0}};
	struct ibv_srq *srq;
	struct ibv_cq *cq;
	struct ibv_pd *pd;
	struct ibv_qp *qp;

	CODE(0, ibv_query_device(context, &limits));
	MUST(pd = ibv_alloc_pd(context));
	MUST(cq = ibv_create_cq(context, 16, NULL, NULL, 0));
	NIL(EINVAL, ibv_create_srq(pd, NULL));
	init.attr.max_wr = 0;
	NIL(EINVAL, ibv_create_srq(pd, &init));
	init.attr.max_wr = limits.max_srq_wr + 1;
	NIL(EINVAL, ibv_create_srq(pd, &init));
	init.attr.max_wr = 4;
	init.attr.max_sge = limits.max_srq_sge + 1;
	NIL(EINVAL, ibv_create_srq(pd, &init));
	init.attr.max_sge = 1;
	MUST(srq = ibv_create_srq(pd, &init));
	CODE(EBUSY, ibv_dealloc_pd(pd));
	CODE(EINVAL, ibv_query_srq(srq, NULL));
	CODE(0, ibv_query_srq(srq, &attr));
	RESULT(1, 0, attr.max_wr == 4 && attr.max_sge == 1 && attr.srq_limit == 0);
	CODE(EINVAL, ibv_modify_srq(srq, NULL, IBV_SRQ_LIMIT));
	CODE(EINVAL, ibv_modify_srq(srq, &attr, 1 << 7));
	attr.srq_limit = 5;
	CODE(EINVAL, ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
	receive.sg_list = sge;
	receive.num_sge = 2;
	CODE(EINVAL, ibv_post_srq_recv(srq, &receive, &bad_receive));
	RESULT(1, 0, bad_receive == &receive);
	receive.num_sge = 0;
	for (int posted = 0; posted < 4; posted++)
		CODE(0, ibv_post_srq_recv(srq, &receive, &bad_receive));
	CODE(ENOMEM, ibv_post_srq_recv(srq, &receive, &bad_receive));

	/* Another size: not below what is outstanding or the limit, and all of the attributes or none. */
	attr.max_wr = 2;
	CODE(EINVAL, ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR));
	attr.max_wr = limits.max_srq_wr + 1;
	CODE(EINVAL, ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR));
	attr.max_wr = 8;
	attr.srq_limit = 9;
	CODE(EINVAL, ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT));
	CODE(ENOMEM, ibv_post_srq_recv(srq, &receive, &bad_receive));
	CODE(0, ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR));
	for (int posted = 4; posted < 8; posted++)
		CODE(0, ibv_post_srq_recv(srq, &receive, &bad_receive));
	CODE(ENOMEM, ibv_post_srq_recv(srq, &receive, &bad_receive));
	attr.srq_limit = 0;
	CODE(0, ibv_query_srq(srq, &attr));
	RESULT(8, 0, attr.max_wr);

	with_queue.send_cq = with_queue.recv_cq = cq;
	with_queue.srq = srq;
	MUST(qp = ibv_create_qp(pd, &with_queue));
	CODE(EINVAL, ibv_post_recv(qp, &receive, &bad_receive));
	CODE(EBUSY, ibv_destroy_srq(srq));
	CODE(0, ibv_destroy_qp(qp));
	CODE(0, ibv_destroy_srq(srq));
	CODE(0, ibv_destroy_cq(cq));
	CODE(0, ibv_dealloc_pd(pd));
	return 0;
}

static int extended_connections(struct ibv_context *context, struct ibv_context *other)
{
	struct ibv_xrcd_init_attr domain = {.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1};
	struct ibv_srq_init_attr_ex queue = {.attr = {.max_wr = 4, .max_sge = 1}, .srq_type = IBV_SRQT_XRC};
	struct ibv_qp_init_attr_ex target = {.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD};
	struct ibv_qp_init_attr_ex initiator = {.qp_type = IBV_QPT_XRC_SEND, .cap = {.max_send_wr = 4, .max_send_sge = 1}};
	struct ibv_qp_open_attr open = {.qp_type = IBV_QPT_XRC_RECV};
	struct ibv_qp_init_attr plain = {.qp_type = IBV_QPT_XRC_RECV, .cap = {4, 4, 1, 1, 0}};
	const uint32_t all = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
	const uint32_t named = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
	struct ibv_recv_wr receive = {0}, *bad_receive;
	struct ibv_send_wr send = {.opcode = IBV_WR_SEND}, *bad_send;
	struct ibv_xrcd *xrcd, *same, *alone, *elsewhere;
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
	struct ibv_device_attr limits;
	struct ibv_qp *qp, *twice, *sender;
	struct ibv_srq *srq, *basic;
	struct ibv_cq *cq, *foreign;
	struct ibv_pd *pd;
	uint32_t number = 0;
	int fd = memfd_create("domain", 0);

	CODE(0, ibv_query_device(context, &limits));
	RESULT(1, 0, (limits.device_cap_flags & IBV_DEVICE_XRC) != 0);
	MUST(pd = ibv_alloc_pd(context));
	MUST(cq = ibv_create_cq(context, 16, NULL, NULL, 0));
	MUST(foreign = ibv_create_cq(other, 16, NULL, NULL, 0));

	/* Domains: by a file that somebody has opened one by, or that nobody has. */
	NIL(EINVAL, ibv_open_xrcd(context, NULL));
	domain.comp_mask = IBV_XRCD_INIT_ATTR_FD;
	NIL(EINVAL, ibv_open_xrcd(context, &domain));
	domain.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS | 1 << 9;
	NIL(EOPNOTSUPP, ibv_open_xrcd(context, &domain));
	domain.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
	domain.fd = 9999;
	NIL(EBADF, ibv_open_xrcd(context, &domain));
	domain.fd = fd;
	NIL(EAGAIN, ibv_open_xrcd(context, &domain));
	domain.oflags = O_CREAT | O_EXCL;
	MUST(xrcd = ibv_open_xrcd(context, &domain));
	NIL(EINVAL, ibv_open_xrcd(context, &domain));
	domain.oflags = 0;
	MUST(same = ibv_open_xrcd(context, &domain));
	MUST(elsewhere = ibv_open_xrcd(other, &domain));
	domain.fd = -1;
	domain.oflags = O_CREAT;
	MUST(alone = ibv_open_xrcd(context, &domain));

	/* Queues. */
	NIL(EINVAL, ibv_create_srq_ex(context, &queue));
	queue.comp_mask = all;
	NIL(EINVAL, ibv_create_srq_ex(context, &queue));
	queue.pd = pd;
	NIL(EINVAL, ibv_create_srq_ex(context, &queue));
	queue.xrcd = elsewhere;
	queue.cq = cq;
	NIL(EINVAL, ibv_create_srq_ex(context, &queue));
	queue.xrcd = xrcd;
	queue.cq = foreign;
	NIL(EINVAL, ibv_create_srq_ex(context, &queue));
	queue.cq = cq;
	queue.comp_mask = all & ~IBV_SRQ_INIT_ATTR_XRCD;
	NIL(EINVAL, ibv_create_srq_ex(context, &queue));
	queue.comp_mask = all & ~IBV_SRQ_INIT_ATTR_CQ;
	NIL(EINVAL, ibv_create_srq_ex(context, &queue));
	queue.comp_mask = all | IBV_SRQ_INIT_ATTR_TM;
	NIL(EOPNOTSUPP, ibv_create_srq_ex(context, &queue));
	queue.comp_mask = all;
	queue.srq_type = IBV_SRQT_TM;
	NIL(EOPNOTSUPP, ibv_create_srq_ex(context, &queue));
	queue.srq_type = IBV_SRQT_XRC;
	queue.attr.max_wr = limits.max_srq_wr + 1;
	NIL(EINVAL, ibv_create_srq_ex(context, &queue));
	queue.attr.max_wr = 0;
	NIL(EINVAL, ibv_create_srq_ex(context, &queue));
	queue.attr.max_wr = 4;
	MUST(srq = ibv_create_srq_ex(context, &queue));
	CODE(EINVAL, ibv_get_srq_num(srq, NULL));
	CODE(0, ibv_get_srq_num(srq, &number));
	RESULT(1, 0, number > 0 && number < 1 << 24);
	queue.srq_type = IBV_SRQT_BASIC;
	MUST(basic = ibv_create_srq_ex(context, &queue));
	CODE(EINVAL, ibv_get_srq_num(basic, &number));
	CODE(EBUSY, ibv_destroy_cq(cq));
	CODE(EBUSY, ibv_dealloc_pd(pd));
	CODE(EBUSY, ibv_close_xrcd(xrcd));
	receive.num_sge = 2;
	CODE(EINVAL, ibv_post_srq_recv(srq, &receive, &bad_receive));
	receive.num_sge = 0;
	for (int posted = 0; posted < 4; posted++)
		CODE(0, ibv_post_srq_recv(srq, &receive, &bad_receive));
	CODE(ENOMEM, ibv_post_srq_recv(srq, &receive, &bad_receive));

	/* Queue pairs: those that take requests are of a domain, those that send them of a protection domain. */
	plain.send_cq = plain.recv_cq = initiator.send_cq = cq;
	NIL(EINVAL, ibv_create_qp(pd, &plain));
	plain.qp_type = IBV_QPT_RC;
	plain.srq = srq;
	NIL(EINVAL, ibv_create_qp(pd, &plain));
	NIL(EINVAL, ibv_create_qp_ex(context, &target));
	target.xrcd = elsewhere;
	NIL(EINVAL, ibv_create_qp_ex(context, &target));
	target.xrcd = xrcd;
	target.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	NIL(EOPNOTSUPP, ibv_create_qp_ex(context, &target));
	target.comp_mask = IBV_QP_INIT_ATTR_XRCD;
	MUST(qp = ibv_create_qp_ex(context, &target));
	initiator.pd = pd;
	initiator.comp_mask = IBV_QP_INIT_ATTR_XRCD;
	initiator.xrcd = xrcd;
	NIL(EINVAL, ibv_create_qp_ex(context, &initiator));
	initiator.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	initiator.send_ops_flags = IBV_QP_EX_WITH_TSO;
	NIL(EOPNOTSUPP, ibv_create_qp_ex(context, &initiator));
	initiator.send_ops_flags = IBV_QP_EX_WITH_SEND;
	MUST(sender = ibv_create_qp_ex(context, &initiator));
	CODE(EINVAL, ibv_post_recv(qp, &receive, &bad_receive));
	CODE(EINVAL, ibv_post_recv(sender, &receive, &bad_receive));
	CODE(EINVAL, ibv_post_send(qp, &send, &bad_send));
	CODE(EINVAL, ibv_post_send(sender, &send, &bad_send));
	CODE(EINVAL, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT));
	CODE(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS));
	CODE(EINVAL, ibv_post_recv(qp, &receive, &bad_receive));

	/* Another handle. */
	NIL(EINVAL, ibv_open_qp(context, NULL));
	NIL(EINVAL, ibv_open_qp(context, &open));
	open.comp_mask = named;
	open.qp_num = qp->qp_num;
	NIL(EINVAL, ibv_open_qp(context, &open));
	open.xrcd = alone;
	NIL(EINVAL, ibv_open_qp(context, &open));
	open.xrcd = same;
	open.comp_mask = named | 1 << 9;
	NIL(EOPNOTSUPP, ibv_open_qp(context, &open));
	open.comp_mask = named;
	open.qp_type = IBV_QPT_RC;
	NIL(EINVAL, ibv_open_qp(context, &open));
	open.qp_type = IBV_QPT_XRC_RECV;
	open.qp_num = sender->qp_num;
	NIL(EINVAL, ibv_open_qp(context, &open));
	open.qp_num = qp->qp_num;
	MUST(twice = ibv_open_qp(context, &open));
	RESULT(1, 0, twice->qp_num == qp->qp_num);
	CODE(EBUSY, ibv_close_xrcd(same));
	CODE(0, ibv_destroy_qp(qp));
	CODE(EINVAL, ibv_modify_qp(twice, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	CODE(0, ibv_destroy_qp(twice));
	NIL(EINVAL, ibv_open_qp(context, &open));

	CODE(0, ibv_destroy_qp(sender));
	CODE(0, ibv_destroy_srq(basic));
	CODE(EBUSY, ibv_close_xrcd(xrcd));
	CODE(0, ibv_destroy_srq(srq));
	CODE(0, ibv_close_xrcd(xrcd));
	CODE(0, ibv_close_xrcd(same));
	CODE(0, ibv_close_xrcd(elsewhere));
	CODE(0, ibv_close_xrcd(alone));
	domain.fd = fd;
	domain.oflags = 0;
	NIL(EAGAIN, ibv_open_xrcd(context, &domain));
	CODE(0, ibv_destroy_cq(cq));
	CODE(0, ibv_destroy_cq(foreign));
	CODE(0, ibv_dealloc_pd(pd));
	close(fd);
	return 0;
}

static int datagrams(struct ibv_context *context)
{
	struct ibv_qp_init_attr plain = {.qp_type = IBV_QPT_UD, .cap = {4, 4, 1, 1, 16}};
	struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1};
	union ibv_gid group = {.raw = {[10] = 0xFF, [11] = 0xFF, 239, 1, 2, 3}}, unicast;
	struct ibv_qp *qp, *connected;
	struct ibv_wc wc = {0};
	struct ibv_grh grh = {0};
	struct ibv_cq *cq;
	struct ibv_pd *pd;
	struct ibv_ah *ah;

	MUST(pd = ibv_alloc_pd(context));
	MUST(cq = ibv_create_cq(context, 16, NULL, NULL, 0));
	CODE(0, ibv_query_gid(context, 1, 0, &unicast));
	attr.grh.dgid = unicast;
	NIL(EINVAL, ibv_create_ah(pd, NULL));
	attr.is_global = 0;
	NIL(EINVAL, ibv_create_ah(pd, &attr));
	attr.is_global = 1;
	attr.port_num = 2;
	NIL(EINVAL, ibv_create_ah(pd, &attr));
	attr.port_num = 1;
	attr.grh.sgid_index = 200;
	NIL(EINVAL, ibv_create_ah(pd, &attr));
	attr.grh.sgid_index = 0;
	memset(&attr.grh.dgid, 0, sizeof attr.grh.dgid);
	NIL(EINVAL, ibv_create_ah(pd, &attr));
	attr.grh.dgid = unicast;
	MUST(ah = ibv_create_ah(pd, &attr));
	CODE(EBUSY, ibv_dealloc_pd(pd));
	CODE(0, ibv_destroy_ah(ah));
	MINUS(EINVAL, ibv_init_ah_from_wc(context, 1, &wc, &grh, &attr));
	NIL(EINVAL, ibv_create_ah_from_wc(pd, &wc, &grh, 1));

	plain.send_cq = plain.recv_cq = cq;
	MUST(qp = ibv_create_qp(pd, &plain));
	plain.qp_type = IBV_QPT_RC;
	MUST(connected = ibv_create_qp(pd, &plain));
	CODE(EINVAL, ibv_attach_mcast(qp, NULL, 0));
	CODE(EINVAL, ibv_attach_mcast(qp, &unicast, 0));
	CODE(EINVAL, ibv_attach_mcast(connected, &group, 0));
	CODE(EINVAL, ibv_detach_mcast(qp, NULL, 0));
	CODE(EINVAL, ibv_detach_mcast(qp, &unicast, 0));
	CODE(EINVAL, ibv_detach_mcast(connected, &group, 0));
	CODE(EINVAL, ibv_detach_mcast(qp, &group, 0));
	CODE(0, ibv_attach_mcast(qp, &group, 0));
	CODE(0, ibv_attach_mcast(qp, &group, 0));
	CODE(0, ibv_detach_mcast(qp, &group, 0));
	CODE(EINVAL, ibv_detach_mcast(qp, &group, 0));
	CODE(0, ibv_destroy_qp(connected));
	CODE(0, ibv_destroy_qp(qp));
	CODE(0, ibv_destroy_cq(cq));
	CODE(0, ibv_dealloc_pd(pd));
	return 0;
}

static struct ibv_wc completion(struct ibv_cq *cq)
{
	struct ibv_wc wc = {0};
	while (ibv_poll_cq(cq, 1, &wc) == 0)
		;
	return wc;
}

/* A queue pair that is connected to itself. */
static struct ibv_qp *connected(struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr plain = {.qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq, .cap = {4, 4, 1, 1, 16}, .sq_sig_all = 1};
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .path_mtu = IBV_MTU_1024, .timeout = 14, .retry_cnt = 7};
	struct ibv_qp *qp = ibv_create_qp(pd, &plain);

	if (!qp || ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		return NULL;
	attr.qp_state = IBV_QPS_RTR;
	attr.dest_qp_num = qp->qp_num;
	attr.ah_attr.is_global = attr.ah_attr.port_num = 1;
	if (ibv_query_gid(pd->context, 1, 0, &attr.ah_attr.grh.dgid) ||
	    ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		return NULL;
	attr.qp_state = IBV_QPS_RTS;
	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					IBV_QP_MAX_QP_RD_ATOMIC) ? NULL : qp;
}

static int windows(struct ibv_context *context, struct ibv_context *other)
{
	static char buffer[8192];
	struct ibv_mw_bind bind = {.wr_id = 1};
	struct ibv_send_wr send = {.opcode = IBV_WR_BIND_MW, .wr_id = 2}, *bad_send;
	struct ibv_mw *one, *two, *foreign_mw;
	struct ibv_pd *pd, *second, *foreign;
	struct ibv_mr *mr, *second_mr;
	struct ibv_wc wc;
	struct ibv_cq *cq;
	struct ibv_qp *qp;

	MUST(pd = ibv_alloc_pd(context));
	MUST(second = ibv_alloc_pd(context));
	MUST(foreign = ibv_alloc_pd(other));
	MUST(cq = ibv_create_cq(context, 16, NULL, NULL, 0));
	MUST(qp = connected(pd, cq));
	const int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND;
	MUST(mr = ibv_reg_mr(pd, buffer, 8192, all));
	MUST(second_mr = ibv_reg_mr(second, buffer, 8192, all));
	NIL(EINVAL, ibv_alloc_mw(pd, 0));
	NIL(EINVAL, ibv_alloc_mw(pd, 3));
	MUST(one = ibv_alloc_mw(pd, IBV_MW_TYPE_1));
	MUST(two = ibv_alloc_mw(pd, IBV_MW_TYPE_2));
	MUST(foreign_mw = ibv_alloc_mw(foreign, IBV_MW_TYPE_1));
	CODE(EBUSY, ibv_dealloc_pd(foreign));

	uint32_t key = one->rkey;
	bind.bind_info = (struct ibv_mw_bind_info){mr, (uintptr_t)buffer, 4096, IBV_ACCESS_REMOTE_WRITE};
	RESULT(EINVAL, 0, ibv_bind_mw(qp, two, &bind));
	CODE(EPERM, ibv_bind_mw(qp, foreign_mw, &bind));
	bind.bind_info.mr = second_mr;
	CODE(EPERM, ibv_bind_mw(qp, one, &bind));
	bind.bind_info.mr = NULL;
	CODE(EINVAL, ibv_bind_mw(qp, one, &bind));
	bind.bind_info.mr = mr;
	bind.bind_info.mw_access_flags = IBV_ACCESS_ON_DEMAND;
	CODE(EINVAL, ibv_bind_mw(qp, one, &bind));
	bind.bind_info.mw_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ZERO_BASED;
	CODE(EINVAL, ibv_bind_mw(qp, one, &bind));
	bind.bind_info.mw_access_flags = IBV_ACCESS_REMOTE_WRITE;
	RESULT(1, 0, one->rkey == key);
	CODE(0, ibv_bind_mw(qp, one, &bind));
	RESULT(1, 0, one->rkey == ibv_inc_rkey(key));
	wc = completion(cq);
	RESULT(1, 0, wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_BIND_MW && wc.wr_id == 1);
	CODE(EBUSY, ibv_dereg_mr(mr));
	RESULT(IBV_REREG_MR_ERR_CMD, EBUSY, ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE));

	send.bind_mw.rkey = ibv_inc_rkey(two->rkey);
	send.bind_mw.bind_info = bind.bind_info;
	CODE(EINVAL, ibv_post_send(qp, &send, &bad_send));
	send.bind_mw.mw = foreign_mw;
	CODE(EINVAL, ibv_post_send(qp, &send, &bad_send));
	send.bind_mw.mw = two;
	send.send_flags = IBV_SEND_INLINE;
	CODE(EINVAL, ibv_post_send(qp, &send, &bad_send));
	send.send_flags = 0;
	CODE(0, ibv_post_send(qp, &send, &bad_send));
	wc = completion(cq);
	RESULT(1, 0, wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_BIND_MW);
	/* A window that is bound is to be invalidated before it is bound anew. */
	send.opcode = IBV_WR_LOCAL_INV;
	send.invalidate_rkey = send.bind_mw.rkey;
	CODE(0, ibv_post_send(qp, &send, &bad_send));
	wc = completion(cq);
	RESULT(1, 0, wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_LOCAL_INV);
	send.opcode = IBV_WR_BIND_MW;
	send.bind_mw.bind_info.length = 8193;
	CODE(0, ibv_post_send(qp, &send, &bad_send));
	wc = completion(cq);
	RESULT(IBV_WC_MW_BIND_ERR, 0, wc.status);

	CODE(0, ibv_dealloc_mw(one));
	CODE(0, ibv_dealloc_mw(two));
	CODE(0, ibv_dealloc_mw(foreign_mw));
	CODE(0, ibv_dereg_mr(mr));
	CODE(0, ibv_dereg_mr(second_mr));
	CODE(0, ibv_destroy_qp(qp));
	CODE(0, ibv_destroy_cq(cq));
	CODE(0, ibv_dealloc_pd(pd));
	CODE(0, ibv_dealloc_pd(second));
	CODE(0, ibv_dealloc_pd(foreign));
	return 0;
}

int main(void)
{
	struct ibv_device **list;
	struct ibv_context *context, *other;

	MUST(list = ibv_get_device_list(NULL));
	MUST(list[0]);
	MUST(context = ibv_open_device(list[0]));
	MUST(other = ibv_open_device(list[0]));
	ibv_free_device_list(list);
	no_object();
	queries(context);
	if (memory(context, other) || domains(context, other) || completion_queues(context, other) || queue_pairs(context, other) ||
	    shared_receive_queues(context) || extended_connections(context, other) || datagrams(context) || windows(context, other))
		return 2;
	CODE(0, ibv_close_device(context));
	CODE(0, ibv_close_device(other));
	printf("%d calls, %d answers differ\n", calls, differ);
	return differ != 0;
}
