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
// over an ordinary connection, as do redirects and the first response, which tells the size and the
// validator of the file. All later requests carry that (If-Match, If-Unmodified-Since; RFC 9110,
// section 13.1): a file that changes while it is read is an error, [ErrChanged], not a mixture of
// two. Where the server gives neither a strong ETag nor a date, only the size is compared.
//
// A response counts if it is 206 with the very range that was asked for, as many bytes as that, and
// no coding. TLS is refused, as a record cannot be decrypted in device memory here; so are chunked
// and coded bodies, multipart/byteranges, and servers without ranges.
//
// A connection that ends or makes no progress is followed by another one, which goes on where it
// stopped, as long as there is progress (Config.Retry). On a new connection the first response has
// to come before more requests are sent (RFC 9112, section 9.3.2).
//
// Cost, whatever a server sends: a head of 16 KiB at most; for each connection 300 KiB of memory
// and, while it waits for bytes, the pages of the pool that a head lies in; the body of a response
// only ever goes to the place of the range that it answers. A server that gives a byte a connection
// is read byte by byte: who wants no more of that ends the context. The header of a safetensors
// file may have 16 MiB. The package follows redirects to wherever they lead, by http, without
// headers that are secret (net/http's rules).
//
// The package is API (README, Stability).
package loader
