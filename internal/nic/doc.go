// Package nic is the part of a NIC that all device models share: a port of the wire with
// receive queues that are chosen by flow rules and RSS, header split decided by one policy, flow counters
// and counters by kind of memory, the path to the GPUs (peer to peer or bounced), and the control
// channel of frames to its own control MAC.
//
// The sender's goroutine does all the work of a packet: Transmitter.Send counts it and hands it to
// the link, and the receiving Port's Deliver steers it and has it copied, once, by the receiving
// queue under that queue's lock. At most one such lock is held at a time; under it nothing is
// delivered, called, logged or waited for.
//
// What a queue's driver posted is given back (Returner) in pieces of 256 buffers, each under one hold
// of the queue's lock, and at most 32,768 in all. The port's lock is free meanwhile, and frames pass.
//
// State set by commands is one control.State; it dies with device reset (Reset).
//
// # Device models
//
// A device model (internal/nic/virtio, internal/nic/gve) is a transport, a ring format and a control plane. It
// implements, for each pair of queues:
//
//   - RxQueue, for the ring in which the driver posts buffers: Put, Flush and Call. Lock, Unlock,
//     Arm, Disarm and Delivered come with an embedded RxBase, which asks the ring AwaitBuffers and
//     Buffers, and tells it when it has Stopped; the ring calls Fail for an error of its driver,
//     WakeNext when the driver posts, and WakeAll when it starts or stops. A ring whose driver cannot
//     take buffers back is a Returner as well.
//   - TxQueue, for the ring in which the driver posts frames: Gather, which makes packets of them
//     by way of ParseFrame, Packet.Meta and Packet.Prepare; Reload, which finds a held frame's memory
//     again (RelocatePayload); Done, Abandon, Publish and Call, which give frames back; Pending, Backlog,
//     EnableKick and DisableKick, which say whether there are more; and Stopped. What Gather makes no
//     packet of it tells the Transmitter (Discard). One whose completions may come late is a LateTxQueue
//     as well.
//
// and makes
//
//   - one Port, by NewPort, of all its RxQueues, with a function that says what the driver takes
//     (wire.Limits);
//   - for each TxQueue a Transmitter, by Port.NewTransmitter, and with it a Sender, by NewSender.
//     The Sender is the queue's worker: it holds and retries frames of busy receivers, sleeps, and
//     stops. The device model calls its Start and Stop as the driver starts and stops the queue,
//     and Wake at a doorbell that is no eventfd;
//   - for the eventfds that a frontend gives it, EventFDs; and a Monitor, by NewMonitor, which frees
//     writers that are blocked in one of them, and which calls the device model (Monitored) for kicks of
//     receive queues and for what is due at times.
//
// Besides, the device model tells the Port of device reset (Reset), of another driver (DriverChanged), of
// the queues that a driver uses (SetDefaultRSS), and of what its driver says about header split, MTU and
// carrier. Nothing else of a NIC is a device model's: the model in this package's tests is two
// slices and these two interfaces.
//
// # Faults
//
// A port does some things wrong when it is told to: it loses an interrupt (LoseInterrupt; the device model
// asks InterruptLost before it calls its driver), shows completions late (DelayCompletions; the Sender keeps
// what it takes to give frames back), and takes no receive buffers (Exhaust; Deliver says Busy before it looks
// at a queue). A batch looks at one word for all that is the matter with its port, its carrier included.
//
// Other faults a port has from its making on, or not at all: Config.Sabotage puts other implementations in the place of
// receive queues, of a Sender's queue and outlet, and changes what is compiled of the State (package sabotage).
//
// # Fairness
//
// Of a receive queue without buffers each port that waits gets an equal part of what is posted, whatever
// number of queues it waits with (RxBase). The port that has had fewest frames is woken first, one queue
// of a port at a time, and its other queues follow in turn. A turn is a round of a Sender: the frames
// that it holds, and new ones up to its Batch. A Sender that is awake goes on without a turn while there
// are buffers, and what it gets so counts as its port's. When its port has had 128 frames more than one
// that has a turn, its frames wait until that turn has ended (RxBase.Admit). A turn ends when the Sender
// has tried, whatever came of it, so nobody is left asleep beside buffers. Parts are equal in frames, not
// in bytes. All Senders of a port count as that port: those of its transmit queues, RDMA's, the
// gateway's, an uplink's. A port that has waited in the last 64 posts may be behind by 256 frames, which
// it gets first when it waits again. Whoever has two NICs has two parts. What turns cost: a look at the
// list of ports that wait (1,024 at most) for each turn, and for each batch that arrives at a queue for
// which somebody waits. A thread that polls (Pollers) serves ports in turn likewise, by bytes.
//
// A frame to a receiver without buffers is held, in one of the Sender's Batch places, and nothing is lost as long as
// the held frames keep no other receiver's frame from being seen. When they take all places, the receiver that holds
// most gives up its oldest frames, and keeps one place in eight: dropped, and counted as DropSlowReceiver. It does so
// only if in the last second frames to it have waited for more than 50 ms, it took fewer than 5,000, it took less
// than half of what was sent to it, and frames went to another receiver. As long as that is so it does not wait for
// all places to be held again. A receiver that takes nothing at all for Patience loses what is held for it in any
// case. Patience is counted in time in which the Sender ran: it looks at the clock 16 times, and what passes between
// two looks counts as two such steps at most. A host that takes the processors away for a second makes nobody lose
// frames; where each look is late, patience lasts for 8 to 16 of them.
//
// What was sent to it is more than what was taken from the ring. With it counts its share of the frames
// that wait there, by the mix of the last ones. And while all places are held and the driver's ring is
// full, the driver waits as well, and sends no more than the receiver takes, which tells nothing. For
// that time what is counted is the rate at which the ring became full. So a receiver that takes 1,000 a
// second of a driver that fills its ring at once is found out after 50 to 100 ms; one that takes 1,000
// of 1,700 is not judged. A ring that is not full says that its driver does not wait for us: TCP's
// window does that.
//
// What a Sender knows of receivers is bounded: 64 of them, a dozen numbers each. It reads the clock only
// while frames are held, and looks at all receivers at most when frames begin to be held, and when they
// take all places. What remains: a receiver that takes 5,000 a second or more, or half of what came
// until the ring was full, is waited for, and others get from this sender as many frames as it takes for
// each of its own. One that took much before is not judged for some seconds (3, after 100,000 a second).
// And a ring that a guest has filled with frames to one receiver that takes some now and then: the first
// frame behind them that goes elsewhere waits until that receiver has taken Batch frames; for Patience,
// if it takes none.
//
// # Receive coalescing
//
// Frames of one TCP flow that come in one batch to one receive queue go to the guest as one GSO packet
// (RSC, LRO), if its driver takes such packets, and unless SetCoalescing says no. Which they are says
// package coalesce: what Linux's GRO would merge, and no more. A merge ends with the batch, with another
// queue's frame, with the first frame of its flow that does not continue it, and with a frame of which
// it is not known whether it is of that flow (fragments, other protocols than TCP and UDP). So nothing
// waits for frames to come, nothing overtakes its flow, and a reset or restart finds no merge. Config.Hold
// has merges outlive their batch; see below.
//
// The queue is given the GSO packet whole: its payload lies in one piece in payload buffers, and nothing
// is published before. If it does not take the packet (few buffers, or small ones), the frames are put
// one by one, as without coalescing. Counters, flow counters and taps see the frames as they crossed the
// wire; Coalesced counts those that were merged. Frames with a whole checksum are verified before they
// join, which reads their payload once more.
//
// What it may cost: at most 8 merges are under way on a queue, each of at most 256 frames, 64 KiB and 128
// pieces of memory. A frame that begins none costs a look at the 8 packets behind it; one that ends a
// merge a comparison with each of the 8. A merge that the queue refuses costs one walk of the chains that it
// would take (64 at most); a refusal that is known already costs none. Nothing is allocated for a packet: a
// queue has scratch of about 6 KiB from its first batch on.
//
// # Merges that outlive their batch
//
// With Config.Hold (--rsc-usecs) a merge that is open when its batch ends stays open, as in a NIC with hardware
// GRO. Frames belong to their sender only until Deliver returns, so what there is of the merge is copied then to
// memory of the port's, and from there to the guest when the merge ends, with what the last batch adds, which
// is copied once. The other way would be to write payload to buffers that the driver has posted, and to publish
// them later. It saves a copy, and was not taken: 64 flows would have buffers of a ring out of its order, which neither
// virtqueues of ours (virtq.Device.Rewind) nor gve's completion ring, which has its buffers' order, give back; a
// guest's memory may go, move or be taken back in between; and a merge would keep buffers from frames that do not wait.
//
// A held frame is Taken, for its sender and its link, and its queue's counters, flow counters and taps are told of it
// when it gets to the guest, once, with the place where its payload came to lie; they see the frame as it crossed the
// wire, checksum included. Payload that waits is in memory of kind wire, as in a link's delay line.
//
// A merge ends with what ends it within a batch, but for another queue's frame; of other queues' only
// frames that could not be split, or of which it is not known of which flow they are, end it. Besides it ends when
// Hold has passed since its first frame was held, whatever came behind that; as the oldest, where 65 flows are to be
// merged on a queue or its memory is used up; with SetCoalescing, a change of rules or RSS, a split; and before its
// queue stops (FlushRx). What comes to a queue that has stopped is dropped when its time is up: stopped, or disabled.
//
// Where its queue has no buffers a merge that ends is put as far as there are some, frame by frame, and the rest waits,
// while the next frames of the flow are Busy: they wait with their sender, behind it. It is lost, and counted as
// DropNoBuffer at queue and link, limits.Patience after its time was up. A NIC drops such frames at once; that
// here guests wait for one another, and lose nothing for it, is so without Hold too. A link counts a frame that is
// lost so as received and as dropped.
//
// What it may cost: 64 merges and 1 MiB of a queue, of which as much is made as is needed at a time, and 30 KiB beside
// it; one goroutine of a port, which sleeps while nothing is held, and looks at queues with held frames when the first
// one's time is up; a look at the clock for each batch that leaves something held. Without Hold it costs one comparison
// for each batch and each frame of a merge.
//
// The outbox of internal/wire/gateway, which is no NIC, has a Sender too, over a queue of netstack's
// packets.
//
// The package and those below it are not API (README, Stability).
package nic
