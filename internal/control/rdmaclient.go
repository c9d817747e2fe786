package control

import "context"

// RDMALimits asks for the NIC's maxima of RDMA. EOPNOTSUPP: the NIC has no RDMA.
func (c *Client) RDMALimits(ctx context.Context) (RDMALimits, error) {
	return rdmaInfo.call(ctx, c, none{})
}

// AddPD makes a protection domain and returns its ID.
func (c *Client) AddPD(ctx context.Context) (uint32, error) { return pdAdd.call(ctx, c, none{}) }

// DelPD deletes a protection domain. EBUSY: it has MRs or queue pairs.
func (c *Client) DelPD(ctx context.Context, id uint32) error { return callVoid(ctx, c, pdDel, id) }

// AddMR makes a memory region and returns its key.
func (c *Client) AddMR(ctx context.Context, m MR) (uint32, error) { return mrAdd.call(ctx, c, m) }

// MoreMR adds ranges to an MR of guest memory.
func (c *Client) MoreMR(ctx context.Context, m MRMore) error { return callVoid(ctx, c, mrMore, m) }

// DelMR deletes an MR: after success the NIC uses no memory by its key.
func (c *Client) DelMR(ctx context.Context, key uint32) error { return callVoid(ctx, c, mrDel, key) }

// AddCQ makes a completion queue that holds up to depth completions, and returns its ID.
func (c *Client) AddCQ(ctx context.Context, depth uint32) (uint32, error) {
	return cqAdd.call(ctx, c, depth)
}

// DelCQ deletes a completion queue. EBUSY: a queue pair uses it.
func (c *Client) DelCQ(ctx context.Context, id uint32) error { return callVoid(ctx, c, cqDel, id) }

// PollCQ removes completions from a CQ, at most p.Max and at most MaxWCs, and returns them.
func (c *Client) PollCQ(ctx context.Context, p Poll) (Completions, error) {
	return cqPoll.call(ctx, c, p)
}

// AddQP makes a queue pair and returns its number.
func (c *Client) AddQP(ctx context.Context, q QP) (uint32, error) { return qpAdd.call(ctx, c, q) }

// ConnectQP connects a queue pair.
func (c *Client) ConnectQP(ctx context.Context, p QPPath) error {
	return callVoid(ctx, c, qpConnect, p)
}

// DelQP deletes a queue pair: after success the NIC accesses no memory for it. Its incomplete work requests
// get no completion.
func (c *Client) DelQP(ctx context.Context, qpn uint32) error { return callVoid(ctx, c, qpDel, qpn) }

// QPStatus asks for the state of a queue pair.
func (c *Client) QPStatus(ctx context.Context, qpn uint32) (QPStatus, error) {
	return qpStatus.call(ctx, c, qpn)
}

// PostSend posts work requests. ENOSPC: the queue, or its CQ, has no room for all of them; none was posted.
func (c *Client) PostSend(ctx context.Context, p Post) error { return callVoid(ctx, c, postSend, p) }

// PostRecv posts receives. ENOSPC: the queue, or its CQ, has no room for all of them; none was posted.
func (c *Client) PostRecv(ctx context.Context, p Post) error { return callVoid(ctx, c, postRecv, p) }

// RDMACounts reads the port's counters of RDMA.
func (c *Client) RDMACounts(ctx context.Context) (RDMAPortCounts, error) {
	return rdmaCounts.call(ctx, c, none{})
}

// SetMailbox sets the page to which a GPU's driver reports invalidations.
func (c *Client) SetMailbox(ctx context.Context, m Mailbox) error {
	return callVoid(ctx, c, mailboxSet, m)
}

// PageRequests lists the NIC's requests for pages that the driver has not answered and that have not timed out.
func (c *Client) PageRequests(ctx context.Context) ([]PageRequest, error) {
	return callList(ctx, c, pageRequests)
}

// AnswerPages answers a request for pages. ENOENT: no request with a.ID waits for an answer.
func (c *Client) AnswerPages(ctx context.Context, a PageAnswer) error {
	return callVoid(ctx, c, pageAnswers, a)
}

// PageCounts reads the counters of an MR on demand.
func (c *Client) PageCounts(ctx context.Context, key uint32) (PageCounts, error) {
	return pageCounts.call(ctx, c, key)
}
