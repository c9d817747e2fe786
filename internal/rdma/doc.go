// Package rdma gives Go programs in guests the verbs of RDMA on a NIC of vnic's: protection domains (PD),
// memory regions (MR), completion queues (CQ) and reliably connected queue pairs (QP), over RoCEv2. It sends
// commands over the control channel (docs/specs/control.md, class 10). Over any net.Conn two programs exchange
// addresses, numbers and keys:
//
//	dev, err := rdma.Open(client)
//	defer dev.Close() // it closes the objects below, too
//	pd, err := dev.AllocPD()
//	mr, err := pd.RegisterBuffer(buffer, 0, 16<<20, rdma.LocalWrite|rdma.RemoteWrite)
//	cq, err := dev.NewCQ(128)
//	qp, err := pd.NewQP(rdma.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: 64, MaxRecv: 16})
//	peer, err := rdma.Exchange(ctx, conn, qp, rdma.Ends{Addr: addr, MAC: mac, Offer: mr.Remote()})
//	counts, err := rdma.Put(ctx, qp, mr.Part(0, 1<<20), peer.MR, rdma.TransferOptions{})
//
// Put and Get move long ranges by many work requests. Programs can also post work requests (QP.Post,
// QP.PostRecv) and read completions (CQ.Poll, CQ.Wait). PageServer answers the NIC's requests for pages of
// memory that is not pinned.
//
// # Ownership
//
// A Device owns the objects that were made on it: Device.Close destroys them. The NIC may access the memory of
// posted work requests until they are complete, or QP.Close or MR.Close has returned nil, also after a call
// whose context has ended.
//
// Several goroutines may call methods at the same time.
//
// # Reset
//
// A reset of the port destroys all objects: then calls that would send the NIC a command return ErrReset, but for Close
// methods, which return nil. The program opens a new Device.
//
// The package is not API (README, Stability).
package rdma
