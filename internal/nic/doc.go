// Package nic is the part of a NIC that all device models share: a port on the wire, with receive
// queues chosen by flow rules and RSS, one policy for header split, flow counters, byte counters by
// kind of memory, the path to the GPUs (peer to peer or bounced through host memory), and the
// control channel (frames to wire.ControlMAC).
//
// The sender's goroutine does all work for a packet that waits for nothing. Transmitter.Send counts
// the packet and passes it to the link; the receiving Port's Deliver steers it to a receive queue,
// which copies it once, under that queue's lock. A goroutine holds at most one such lock. While it
// holds one, it does not deliver packets, interrupt drivers, log or wait.
//
// When a command turns a queue's header split off, the port returns posted buffers to the driver
// (Returner) in pieces of 256, each under one hold of the queue's lock, at most 32,768 in all.
// Frames pass between the pieces, and the port's own lock is free meanwhile.
//
// All state that commands set up is one control.State, and the objects of RDMA are in an
// rdma.Engine. Device reset (Reset) clears both.
//
// # Device models
//
// A device model (internal/nic/virtio, internal/nic/gve) is a transport, a ring format and a
// control plane. It implements, for each queue pair:
//
//   - RxQueue, for the ring in which the driver posts buffers: Put, Flush and Call. The model
//     embeds an RxBase for Lock, Unlock, Arm, Disarm and Delivered. RxBase calls the model's
//     AwaitBuffers, Buffers and Stopped (RxModel). The ring calls RxBase's Fail on an error of its
//     driver, WakeNext when the driver posts buffers, and WakeAll when the queue starts or stops. A
//     ring whose driver cannot take buffers back itself also implements Returner.
//   - TxQueue, for the ring in which the driver posts frames: Gather makes packets of the frames
//     (with ParseFrame, Packet.Meta and Packet.Prepare); Reload finds the memory of a held frame
//     again (RelocatePayload); Done, Abandon, Publish and Call return frames to the driver;
//     Pending, Backlog, EnableKick and DisableKick ask for more frames; Stopped reports an error.
//     Gather reports frames that it cannot send to the Transmitter (Discard). A queue that can
//     complete frames some time after the Sender is done with them also implements LateTxQueue.
//
// and creates
//
//   - one Port of all its RxQueues, by NewPort, with the limits of its driver (wire.Limits);
//   - for each TxQueue a Transmitter, by Port.NewTransmitter, and a Sender, by NewSender. The
//     Sender is the queue's worker: it holds and retries frames for busy receivers, sleeps, and
//     stops. The device model calls Start and Stop when the driver starts and stops the queue, and
//     Wake for a doorbell that is not an eventfd;
//   - EventFDs, for the eventfds that a frontend passes to it; and a Monitor, by NewMonitor. The
//     Monitor frees writers that block in one of these eventfds, and calls the device model
//     (Monitored) for kicks of receive queues and for timed work.
//
// The device model also tells the Port about device reset (Reset), a change of driver
// (DriverChanged), the queues in use (SetDefaultRSS), and the driver's header split, MTU and
// carrier. Everything else of a NIC is in this package: the device model in its tests is two slices
// that implement RxQueue and TxQueue.
//
// # Faults
//
// A port misbehaves on request. It drops an interrupt (LoseInterrupt; the device model calls
// InterruptLost before it interrupts its driver), delays transmit completions (DelayCompletions;
// the Sender keeps the tokens with which it completes the frames later), or takes no receive
// buffers (Exhaust; Deliver makes packets for receive queues Busy without looking there). One word of the
// port has a bit for each of the last two faults and one for the lost carrier; Deliver reads the
// word once for a batch.
//
// A port has other faults from its creation on, or never: Config.Sabotage wraps receive queues, a
// Sender's queue and its outlet, changes the State that the port compiles, or makes the device
// model mark its rings wrongly (package sabotage).
//
// # Fairness
//
// Ports that wait for buffers of a receive queue get equal numbers of its buffers, however many
// queues each port waits with (RxBase). RxBase first wakes a Sender of the port that has had fewest
// frames. It wakes one Sender of a port at a time; the port's other Senders follow in turn. A turn
// is one round of a Sender: its held frames, and new ones up to its Batch. A Sender that is awake
// sends without a turn while there are buffers, and these frames count for its port. When a port is
// more than 128 frames ahead of a port that has a turn, its frames wait until that turn has ended
// (RxBase.Admit). A turn ends when the Sender has tried to send, whatever the result. Shares are
// equal in frames, not in bytes. All Senders of a port
// count as that port: the Senders of its transmit queues, of RDMA, of the gateway or of an uplink.
// A port that has waited during the last 64 posts keeps a credit of up to 256 frames, which it gets
// first when it waits again. A guest with two NICs has two shares. A turn costs a look at the list
// of waiting ports (at most 1,024), and so does each batch that arrives at a queue with waiters. A
// polling thread (Pollers) also serves ports in turn, by bytes.
//
// A Sender holds a frame for a receiver without buffers in one of its Batch slots. It drops nothing
// as long as held frames leave a slot for frames to other receivers. When held frames fill all
// slots, the Sender drops the oldest held frames of the receiver that has most, and leaves it one
// slot in eight; the dropped frames count as DropSlowReceiver. This happens only if, in the last
// second, frames to that receiver have waited for more than 50 ms, it took fewer than 5,000 frames,
// it took less than half of the frames sent to it, and frames went to another receiver. After that,
// as long as it holds frames for that receiver, the Sender judges again whenever held and new
// frames together fill all slots. If a receiver takes no frame for Patience, the Sender drops its
// held frames in any case. Patience counts time during which the Sender ran: while it waits, the
// Sender looks at the clock once a step, a 16th of Patience, and the time between two looks counts
// as two steps at most. So no frame is lost when the host suspends the Sender for a second. If each
// look is late, patience ends after 8 to 16 looks.
//
// The number of frames sent to a receiver is the number taken from the ring for it, plus its share
// of the frames that still wait in the ring, estimated from the mix of recent frames. While held
// frames fill all slots and the driver's ring is full, the driver waits too and can send no faster
// than the receiver takes frames. For that time the Sender counts the rate at which the ring
// filled. So the Sender finds a receiver slow after 50 to 100 ms if the receiver takes 1,000 frames
// a second from a driver that fills its ring at once; it does not if the receiver takes 1,000 of
// 1,700 frames. A ring that is not full shows that its driver does not wait for the Sender: TCP's
// window limits the driver.
//
// A Sender keeps state for 64 receivers, a dozen numbers each. For this it reads the clock only
// while frames are held, and for a receiver that it does not know yet; it looks at all receivers
// only when the first frame is held and when frames fill all slots. Some delay remains. The Sender
// waits for a receiver that takes 5,000 frames a second or more, or half of the frames that came
// until the ring was full; meanwhile other receivers get from this Sender one frame for each that
// this receiver takes. For some seconds the Sender does not find a receiver slow that was fast
// before (3 s after 100,000 frames a second). And if a guest has filled its ring with frames to one
// receiver that takes few, the first frame behind them to another receiver waits until that
// receiver has taken Batch frames, or for Patience if it takes none.
//
// # Receive coalescing
//
// Frames of one TCP flow that arrive in one batch at one receive queue reach the guest as one GSO
// packet (RSC, LRO), if its driver accepts such packets and SetCoalescing is on. Package coalesce
// decides which frames: it merges only frames that Linux's GRO would merge too, but not all of
// them. A merge ends with the batch, at a frame for another queue, at the first frame of its flow
// that does not continue it, and at a frame whose flow is unknown (a fragment, or an IP packet that
// is neither TCP nor UDP). So a merge never waits for frames, no frame overtakes another one of its
// flow, and no merge is open at a reset or restart. With Config.Hold merges outlive their batch;
// see below.
//
// The queue gets the GSO packet whole: its payload is contiguous in payload buffers, and the queue
// publishes nothing before the packet is complete. If the queue does not take the packet (few or
// small buffers), the port puts the frames one by one, as without coalescing. Counters, flow
// counters and taps see the frames as they crossed the wire; Coalesced counts merged frames. The
// port verifies a complete checksum before the frame joins a merge, which costs one more read of
// the frame's payload.
//
// Cost: a queue has at most 8 open merges, each of at most 256 frames, 64 KiB and 128 memory
// segments. A frame that starts no merge costs a look at the 8 packets behind it; a frame that ends
// a merge costs a comparison with each of the 8. A merge that the queue refuses costs one walk over
// the chains that it would use (at most 64); a repeated refusal costs no walk. No packet causes an
// allocation: a queue allocates about 6 KiB of scratch at its first batch.
//
// # Merges that outlive their batch
//
// With Config.Hold (--rsc-usecs) a merge that is open when its batch ends stays open, as in a NIC
// with hardware GRO. A sender owns its frames again when Deliver returns, so the port copies their
// payload to its own memory before, and from there to the guest when the merge ends; it copies
// frames of the last batch only once, directly to the guest. The alternative is to write payload to
// posted buffers and to publish these later. It would save a copy, but 64 flows would use buffers
// of a ring out of order, and neither our virtqueues (virtq.Device.Rewind) nor gve's completion
// ring can return buffers out of order; the guest could unmap, move or take back the memory in
// between; and merges would keep buffers from frames that do not wait.
//
// For its sender and its link a held frame is Taken. Its queue's counters, flow counters and taps
// see it once, when it reaches the guest, with the place of its payload and as it crossed the wire,
// checksum included. Held payload is in memory of kind wire, as in a link's delay line.
//
// The same events end a merge as within a batch, with one exception: a frame for another queue ends
// a merge only if the frame could not be split or if its flow is unknown. A merge also ends when
// Hold has passed since its first frame was held; when it is the oldest, and a 65th flow needs a
// slot or the queue's memory is used up; at SetCoalescing(false), a change of rules, RSS or split;
// and before its queue stops (FlushRx). If the queue has stopped, the port drops its held frames,
// at the latest when their time is up, with the reason stopped or disabled.
//
// If the queue lacks buffers when a merge ends, the port puts its frames one by one as far as
// buffers last, and the other frames wait. Meanwhile the next frames of the flow are Busy and wait
// with their sender. When limits.Patience has passed since the merge's time was up, the port drops
// its frames, and counts them as DropNoBuffer at queue and link. A hardware NIC would drop them at
// once; in vnic senders wait for receivers, with and without Hold. A link counts a frame that is
// lost this way both as received and as dropped.
//
// Cost: 64 merges and 1 MiB for a queue, allocated as needed, and 30 KiB beside it; one goroutine
// for a port, which sleeps while nothing is held and wakes when the first merge's time is up; one
// read of the clock for each batch that leaves frames held. Without Hold the cost is one comparison
// for each batch and each frame of a merge.
//
// The outbox of internal/wire/gateway, which is not a NIC, also uses a Sender, over a queue of
// netstack's packets.
//
// This package and the packages below it are not API (README, Stability).
package nic
