// Package loader reads training data over HTTP/1.1 into GPU memory, also called device memory. It asks for
// ranges of a file on several connections, steers the connections to a queue with device memory (unless
// Config.Copy is set), and gathers the bodies of the responses into a buffer. The server must serve ranges (RFC
// 9110, section 14).
//
// An [Object] is a file on a server. [Object.Fetch] brings pieces of it to a buffer. [Records] reads a file
// of records of one size in batches for a training loop, and [Safetensors] reads a file of tensors in the
// safetensors format.
//
// Without Config.Copy, Fetch receives the heads of responses (status line and header fields) in device memory
// like the bodies, and reads them there, at most 512 bytes at a time (devmem.Memory's Look).
//
// Later requests carry the first response's strong ETag (If-Match), or else its date (If-Unmodified-Since; RFC
// 9110, section 13.1), if it has one. The ETag, date and size in each later response are compared with the first
// response's. If that has neither ETag nor date, they are compared with the first later response that has one. A
// difference is an error, [ErrChanged]; a missing value is not. The weak and the strong form of an ETag count as
// equal; if both ETags are strong, dates are not compared.
//
// A server that answers 412 may have the same file under a weak ETag, which never matches If-Match. After a
// 412, new connections and ReadHost send requests without conditions.
//
// A response is accepted only if its status is 206, its range is the one that was asked for, and its body has
// no coding. The package refuses TLS, because it cannot decrypt a record in device memory.
//
// When a connection of Fetch ends, or makes no progress for Config.Timeout, another one continues where it
// stopped, unless Config.Retry has passed without progress.
//
// If a server answers 408, 429, or 500 and above (except 501 and 505), Fetch, Open and ReadHost ask again after a
// while, but not before the time in Retry-After, and give up after Config.Retry.
//
// A connection costs some 300 KiB of host memory and, while it waits for the rest of a response's head, the
// pages of the pool that hold the start of the head. The body of a response is written only to the destination
// of its range. Open and ReadHost follow redirects to any host, over http, and leave out secret headers by
// net/http's rules; Fetch follows none.
//
// The header of a safetensors file may have [MaxHeader] bytes, as many as the format's reference accepts. The
// parsed header takes up to 8 bytes for each byte of the header, 16 for metadata
// (TestMemoryThatAHeaderTakes).
//
// The package is API (README, Stability).
package loader
