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
// A device model (nic/virtio, nic/gve) is a transport, a ring format and a control plane. It
// implements, for each pair of queues:
//
//   - RxQueue, for the ring in which the driver posts buffers: Put, Flush and Call. Lock, Unlock,
//     Arm and Disarm come with an embedded RxBase, which asks the ring AwaitBuffers and tells it
//     when it has Stopped; the ring calls Fail for an error of its driver and WakeAll when the
//     driver posts. A ring whose driver cannot take buffers back is a Returner as well.
//   - TxQueue, for the ring in which the driver posts frames: Gather, which makes packets of them
//     by way of ParseFrame, Packet.Meta and Packet.Prepare; Reload, which finds a held frame's memory
//     again (RelocatePayload); Done, Abandon, Publish and Call, which give frames back; Pending, Backlog,
//     EnableKick and DisableKick, which say whether there are more; and Stopped.
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
// # Fairness
//
// A frame to a receiver without buffers is held, in one of the Sender's Batch places, and nothing
// is lost as long as the held frames keep no other receiver's frame from being seen. When they
// take all places, the receiver that holds most gives up its oldest frames, until half of the
// places are free: dropped, and counted as DropSlowReceiver. It does so only if frames to it have waited
// for more than 50 ms of the last second, it took less than half of what was sent to it in that time, and
// frames went to another receiver in it. A receiver that takes nothing at all for Patience loses
// what is held for it in any case.
//
// What a Sender knows of receivers is bounded: 64 of them, three numbers each. It reads the clock
// only while frames are held. What remains is a ring that a guest has filled with frames to one
// slow receiver: the first frame behind them that goes elsewhere waits until that receiver has taken
// Batch frames, or for Patience if it takes none.
//
// The outbox of stack/gateway, which is no NIC, has a Sender too, over a queue of netstack's
// packets.
//
// The package and those below it are not API (README, Stability).
package nic
