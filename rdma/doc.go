// Package rdma has the verbs of RDMA for Go programs in guests, on a NIC of ours: protection domains (PD), memory
// regions (MR), completion queues (CQ) and reliably connected queue pairs (QP), over RoCEv2. What it asks of the NIC
// travels on the control channel (docs/specs/control.md, class 10): the program that opened the NIC has a Client.
//
// A program opens the device, says what memory the NIC may use, makes a queue pair, and connects it to one of another
// guest's; both tell each other what that takes, and where their memory is, over any net.Conn:
//
//	dev, err := rdma.Open(client)
//	defer dev.Close() // all that was made of it, too
//	pd, err := dev.AllocPD()
//	mr, err := pd.RegisterBuffer(buffer, 0, 16<<20, rdma.LocalWrite|rdma.RemoteWrite)
//	cq, err := dev.NewCQ(128)
//	qp, err := pd.NewQP(rdma.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: 64, MaxRecv: 16})
//	peer, err := rdma.Exchange(ctx, conn, qp, rdma.Ends{Addr: addr, MAC: mac, Offer: mr.Remote()})
//	counts, err := rdma.Put(ctx, qp, mr.Part(0, 1<<20), peer.MR, rdma.TransferOptions{})
//
// Put and Get move long ranges by many work requests. Below them are QP.Post and QP.PostRecv, which take work requests
// as they are, and CQ.Poll and CQ.Wait, which give completions; WCError says what a completion means that failed.
// PageServer is for memory that is not pinned: it answers the NIC's requests for pages.
//
// # Ownership
//
// What a Device has made belongs to it: Close of an object ends that, and Device.Close ends the rest, in the right
// order: queue pairs, completion queues, memory regions, protection domains. The Client stays its owner's, who closes
// it after the device. While a queue pair that has work requests is not closed the NIC may read and write their memory,
// also after a call was given up; once QP.Close or MR.Close has returned nil it does not.
//
// All methods may be called by many goroutines at once. None leaves a goroutine behind.
//
// # Reset
//
// When the port was reset (its driver began anew, or the NIC did) nothing of what was made is left: all calls return
// ErrReset, those that wait too, and Close has nothing to do. The program opens a new Device.
//
// The package knows no guest and no driver. It is not API (README, Stability).
package rdma
