// Package loader reads training data over HTTP/1.1 into device memory, written against package
// devmem alone. It asks for ranges of a file on several connections, steers these to a queue with
// device memory, and gathers the bodies of the responses to their places in a buffer. Any server that
// serves ranges (RFC 9110, section 14) will do.
//
// An [Object] is a file on a server. [Object.Fetch] brings pieces of it to a buffer. [Records] reads a
// file of records of one size, batch by batch for a training loop, and [Safetensors] a file of tensors
// in that format; both use an Object.
//
// The heads of responses lie in device memory like the bodies; the package looks at them there, 512
// bytes at a time (devmem.Memory's Look). An ordinary connection brings what a CPU has to see: the
// first response with the size and the validators of the file, redirects, the header of tensors.
//
// Later requests carry the file's strong ETag (If-Match), or else its date (If-Unmodified-Since; RFC
// 9110, section 13.1), and each response's ETag, date and size are compared with the first one's. A
// file that changes while it is read is an error, [ErrChanged], which names the servers' addresses.
// The weak and the strong form of an ETag are the same, as are the forms of a date; where both ETags
// are strong, dates are not compared. Where the first response has no validator, the first later one
// that has takes its place; where no response has one, only the size is compared. A later response
// need not say the size.
//
// A server that answers 412 may have the same file by a weak ETag, which meets no If-Match. From then
// on new connections are asked without conditions, and each response there has to have an ETag or a
// date to compare.
//
// A response counts if its status is 206, its range the one that was asked for, its length that of
// the range, and its body not coded. Refused are TLS, as a record cannot be decrypted in device memory
// here, chunked and coded bodies, multipart/byteranges, and servers without ranges.
//
// When a connection ends or makes no progress, another one goes on where it stopped, as long as there
// is progress (Config.Retry). On a new connection the first response has to come before more requests
// are sent (RFC 9112, section 9.3.2).
//
// Fetch, Open and ReadHost ask a server again, on another connection, that answers 408, 429 or 5xx, but
// not 501 or 505: after the time in its Retry-After, or else after 10 ms at first and up to a second.
// Without another byte that ends after Config.Retry and a second (TestWaitsAreBounded), and at once if
// Retry-After is longer than what is left.
//
// Whatever a server sends, a head costs at most 16 KiB, and a connection 300 KiB of memory and, while
// it waits for bytes, the pages of the pool that a head lies in. The body of a response is written to
// the place of its range and nowhere else. A server that sends one byte on each connection is read byte
// by byte until the context ends. The package follows redirects to wherever they lead, by http, without
// headers that are secret (net/http's rules).
//
// The header of a safetensors file may have [MaxHeader] bytes, as many as the format's reference
// takes. It is held in host memory. Parsed, it takes up to 8 bytes for each of its bytes, 16 of
// metadata, and 5 of the tensors of a model (TestMemoryThatAHeaderTakes): 600 MB in all for the longest
// header of a model. Strings with escapes leave garbage besides.
//
// The package is API (README, Stability).
package loader
