// Package loader reads training data over HTTP/1.1 into device memory, written against package
// devmem alone: ranges of a file are asked for on several connections, which are steered to a queue
// with device memory, and the bodies of the responses are gathered to their places in a buffer. Any
// server that serves ranges (RFC 9110, section 14) will do.
//
// An [Object] is a file on a server. [Object.Fetch] brings pieces of it to a buffer. On top of it,
// [Records] is a file of records of one size, batch by batch for a training loop, and [Safetensors]
// a file of tensors in that format.
//
// The heads of responses lie in device memory with all else; they are looked at there, 512 bytes at
// a time (devmem.Memory's Look). What a CPU has to see of a file, as the header of tensors, comes
// over an ordinary connection, as do redirects and the first response, which has the size and the
// validators of the file. Later requests carry its strong ETag (If-Match), or else its date
// (If-Unmodified-Since; RFC 9110, section 13.1), and each response's ETag, date and size are compared
// with the first one's. A file that changes while it is read is an error, [ErrChanged], which names
// the servers' addresses. The weak and the strong form of an ETag are the same, as are the forms of a
// date; where both ETags are strong, dates are not compared. Where the first response has no
// validator, the first later one that has takes its place; where no response has one, only the size
// is compared. A later response need not say the size.
//
// A server that answers 412 may have the same file by a weak ETag, which meets no If-Match. It is asked
// again without conditions, as are others on new connections from then on; then each response has to
// have an ETag or a date to compare.
//
// A response counts if it is 206 with the very range that was asked for, as many bytes as that, and
// no coding. TLS is refused, as a record cannot be decrypted in device memory here; so are chunked
// and coded bodies, multipart/byteranges, and servers without ranges.
//
// A connection that ends or makes no progress is followed by another one, which goes on where it
// stopped, as long as there is progress (Config.Retry). On a new connection the first response has
// to come before more requests are sent (RFC 9112, section 9.3.2).
//
// A server that answers 408, 429 or 5xx, but for 501 and 505, is asked again, on another connection,
// by Open and ReadHost, too: after what its Retry-After says, or else after 10 ms at first and up to a
// second. Without a byte more that ends after Config.Retry and a second (TestWaitsAreBounded); a
// Retry-After for which there is not as long left ends it at once.
//
// Cost, whatever a server sends: a head of 16 KiB at most; for each connection 300 KiB of memory
// and, while it waits for bytes, the pages of the pool that a head lies in; the body of a response
// only ever goes to the place of the range that it answers. A server that gives a byte a connection
// is read byte by byte: who wants no more of that ends the context. The package follows
// redirects to wherever they lead, by http, without headers that are secret (net/http's rules).
//
// The header of a safetensors file may have [MaxHeader] bytes, as many as the format's reference
// takes. It is held in host memory, and what is made of it takes up to 8 bytes for each of its bytes,
// of metadata 16, and of the tensors of a model 5 (TestMemoryThatAHeaderTakes): 600 MB in all for the
// longest header of these. Strings with escapes leave garbage besides.
//
// The package is API (README, Stability).
package loader
