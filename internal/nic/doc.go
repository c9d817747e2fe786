// Package nic is the part of a NIC that all device models share: a port on the wire, with receive queues chosen
// by flow rules and RSS, one policy for header split, flow counters, byte counters by kind of memory, the path
// to the GPUs (peer to peer or bounced through host memory), and the control channel (frames to
// wire.ControlMAC).
//
// The sender's goroutine does all work for a packet to another NIC, if the packet waits for nothing. Transmitter.Send
// passes it to the link and counts it; the receiving Port's Deliver steers it to a receive queue, which copies it
// (once, unless it is bounced or held), under that queue's lock. A goroutine holds at most one such lock; meanwhile it
// does not deliver packets, interrupt drivers, log or sleep. RDMA packets come from and go to an rdma.Engine instead
// of queues.
//
// The driver's commands, by the control channel or by gve's admin queue, set up a control.State; the control channel
// also sets up the objects of an rdma.Engine. Device reset (Reset) clears both.
//
// # Device models
//
// A device model (internal/nic/virtio, internal/nic/gve) is a transport, a ring format and a control plane. It
// implements, for each queue pair:
//
//   - RxQueue, for the ring in which the driver posts buffers. The model embeds an RxBase in it,
//     which calls the model's RxModel. A ring whose driver cannot take buffers back itself also
//     implements Returner.
//   - TxQueue, for the ring in which the driver posts frames: Gather makes packets of the frames
//     (with ParseFrame, Packet.Meta and Packet.Prepare), Reload finds the memory of a held frame
//     again (RelocatePayload), and Done returns frames to the driver. A queue that can complete
//     frames some time after the Sender is done with them also implements LateTxQueue.
//
// and creates
//
//   - one Port of all its RxQueues, by NewPort, with the limits of its driver (wire.Limits);
//   - for each TxQueue a Transmitter, by Port.NewTransmitter, and a Sender, by NewSender, which is
//     the queue's worker;
//   - EventFDs, for the eventfds that a frontend passes to it for interrupts; and a Monitor, by
//     NewMonitor, which frees writers that block in one of these eventfds, and calls the device model
//     (Monitored) for kicks of receive queues, if the model calls Watch, and for timed work.
//
// # Faults
//
// A user can make a port drop an interrupt (LoseInterrupt), delay transmit completions (DelayCompletions), or
// take no receive buffers for a time (Exhaust). Config.Sabotage gives a port other faults (package sabotage).
//
// # Fairness
//
// Ports that wait for buffers of a receive queue get about equal numbers of frames into it, however many transmit
// queues each port waits with, and whatever the length of the frames (RxBase). When the receive queue has buffers,
// RxBase gives a turn to a Sender of the waiting port that has had fewest frames, and at most one turn at a time to a
// port. A Sender that is awake sends without a turn while there are buffers, and these frames count for its port. When
// a port without a turn is more than 128 frames ahead of a port that has one, frames of the port without a turn wait
// until the other's turn has ended (RxBase.Admit). A polling thread (Pollers) also serves ports in turn, by bytes.
//
// A Sender holds a frame for a receiver without buffers in one of its Batch slots. When held frames fill all slots, the
// Sender may drop the oldest held frames of the receiver that has most, and leave that receiver one slot in eight; the
// dropped frames count as DropSlowReceiver. As long as the Sender finds this receiver slow and holds frames for it, the
// Sender may drop more whenever held and new frames fill all slots. A receiver is slow only if, in about the last
// second, frames to it have waited for more than 50 ms, it took fewer than 5,000 frames and less than half of the
// frames sent to it, and frames went to another receiver. If a receiver takes no frame of a Sender for Patience, the
// Sender drops its held frames in any case. Patience counts time during which the Sender ran: a Sender with held frames
// looks at the clock once a step, a 16th of Patience, and the time between two looks counts as two steps at most. So
// time in which the host has suspended the Sender hardly counts.
//
// The number of frames sent to a receiver is the number taken from the ring for it, plus its share of the frames
// that still wait in the ring, estimated from the mix of recent frames. While held frames fill all slots and the
// driver's ring is full, the driver waits too and can send no faster than the receiver takes frames. For that
// time the Sender counts the rate at which the ring filled, but at most 10,000 frames a second, or the frames that
// were sent, if these are more.
//
// Some delay remains: while a Sender waits for a receiver that is not slow, frames to other receivers share the
// Sender's slots with the frames to this one.
//
// # Receive coalescing
//
// Frames of one TCP flow that arrive in one batch at one receive queue may reach the guest as one GSO packet
// (RSC, LRO), if its driver accepts such packets and SetCoalescing is on. Package coalesce decides which frames:
// it merges only frames that Linux's GRO would merge too, but not all of them. Without Config.Hold a merge ends with
// its batch or earlier, so it never waits for frames. No frame overtakes another one of its flow. With Config.Hold
// merges outlive their batch; see below.
//
// The queue gets the GSO packet in one Put, and publishes nothing of it before it is complete. If the queue does not
// take the packet, the port puts the frames one by one, as without coalescing. Counters, flow counters and taps see the
// frames as they crossed the wire, the account of flows one packet; Coalesced counts merged frames and packets.
//
// Cost: without Config.Hold a queue has at most 8 open merges. A merge has at most 256 frames, which make an IP packet
// of at most 65535 bytes, and, from the second frame on, at most 128 memory segments.
//
// # Merges that outlive their batch
//
// With Config.Hold (--rsc-usecs) a merge that is open when its batch ends stays open, as in a NIC with hardware
// GRO. A sender owns its frames again when Deliver returns, so the port copies their payload to its own memory
// before, and from there to the guest when the merge ends. The alternative is to write payload to posted buffers
// and to publish these later. It would save a copy, but flows would use the buffers of a ring out of order, while the
// receive queues of both device models return buffers in order; and the guest could take back the memory in between.
//
// For its sender and its link a held frame is Taken. Its queue's counters, flow counters and taps see it once,
// when it reaches the guest (then with the place of its payload) or is dropped, and as it crossed the wire, checksum
// included. Held payload is in memory of kind wire, as in a link's delay line.
//
// A merge also ends when Hold has passed since its first frame was held, and before its queue stops (FlushRx). The
// oldest merge of a queue ends when there is no room for another one or for its payload. If the queue lacks buffers
// when a merge ends, the port puts the held frames one by one as far as buffers last, and the others wait. When
// limits.Patience has passed since the merge's time was up, the port drops the frames that still wait, and counts them
// as DropNoBuffer at queue and link.
//
// Cost: at most 64 merges and 1 MiB of payload for a queue, and one goroutine for a port, which sleeps while
// nothing is held.
package nic
