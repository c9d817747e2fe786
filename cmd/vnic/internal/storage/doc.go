// Package storage is `vnic block`: a guest reads blocks of a remote device into its GPU's memory, and writes them from
// there, over NVMe/TCP or NBD (packages block/nvmetcp and block/nbd, by a transfer.Node).
//
// The device is one that the user names, behind the gateway, or one that the command starts: Linux's own NVMe/TCP
// target in a second guest, whose disk is memory of the host, or nbdkit beside in-process guests. The proof is the
// host's: it fills the disk from a seed and compares what is then in GPU memory, byte by byte; it fills GPU memory
// and compares what is then on the disk, or what a second read brings back. The NIC counts where payload lay.
package storage
