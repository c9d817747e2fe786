// Package load is `vnic load`: a guest brings a file from a web server into its GPU's memory (package loader, by a
// transfer.Node): all of it, the tensors of a safetensors file, or records that a consumer takes in batches.
//
// The server is one that the user names, behind the gateway, or one that the command starts in this process, whose file
// follows from the seed. What is in GPU memory then is compared by the host, byte by byte, or digested where nobody
// knows what should be there. The NIC counts where payload lay.
package load
