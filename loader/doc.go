// Package loader reads training data over HTTP/1.1 into GPU memory, also called device memory. It
// reaches the server and the GPU only through package devmem. It asks for ranges of a file on several
// connections, steers the connections to a queue with device memory, and gathers the bodies of the
// responses into a buffer. The server must serve ranges (RFC 9110, section 14).
//
// An [Object] is a file on a server. [Object.Fetch] brings pieces of it to a buffer. [Records]
// reads a file of records of one size, batch by batch for a training loop, and [Safetensors] reads
// a file of tensors in the safetensors format; both use an Object.
//
// Without Config.Copy, the heads of responses (status line and header fields) are received in
// device memory like the bodies. The package reads them there, at most 512 bytes at a time
// (devmem.Memory's Look). Other data that a CPU has to see comes over an ordinary connection: the
// first response with the size and the validators of the file, redirects, and the header of a
// safetensors file.
//
// Later requests carry the file's strong ETag (If-Match), or else its date (If-Unmodified-Since;
// RFC 9110, section 13.1), and the ETag, date and size of each response are compared with the first
// response's. If they differ, the file has changed: that is an error, [ErrChanged], which names the
// servers' addresses. The weak and the strong form of an ETag count as equal, and so do the forms
// of a date; if both ETags are strong, dates are not compared. If the first response has no
// validator, later responses are compared with the first later response that has one; if no
// response has one, only the size is compared. A later response may leave out the size.
//
// A server that answers 412 may have the same file under a weak ETag, which never matches If-Match.
// After a 412 new connections send requests without conditions, and each of their responses must
// have an ETag or a date to compare.
//
// A response is accepted only if its status is 206, its range is the one that was asked for, its
// length is the length of the range, and its body has no coding. The package refuses TLS, because
// it cannot decrypt a record in device memory, chunked and coded bodies, multipart/byteranges, and
// servers that serve no ranges.
//
// When a connection of Fetch ends or makes no progress, another one continues where it stopped, as
// long as there is progress (Config.Retry). On a new connection one request is sent alone, and more
// follow after its response (RFC 9112, section 9.3.2).
//
// If a server answers 408, 429 or 5xx (except 501 and 505), Fetch (on another connection), Open and
// ReadHost ask again: after 10 ms at first, later after up to a second, but not before the time in
// Retry-After. Without another byte of the file they ask no more when Config.Retry and a second
// have passed since the first of these answers (TestWaitsAreBounded), and give up at once if
// Retry-After is longer than the rest of Config.Retry.
//
// Whatever a server sends, a response head costs at most 16 KiB. A connection costs some 300 KiB of
// memory and, while it waits for bytes, the pages of the pool that hold the head. The body of a
// response is written only to the destination of its range. A server that sends one byte at a time
// on each connection is read byte by byte, until all is read or the context ends. Open and ReadHost
// follow redirects to any host, over http, and leave out secret headers by net/http's rules; Fetch
// follows none.
//
// The header of a safetensors file may have [MaxHeader] bytes, as many as the format's reference
// accepts. It is held in host memory. The parsed header takes up to 8 bytes for each byte of the
// header, 16 for metadata, and 5 for the tensors of a model (TestMemoryThatAHeaderTakes): 600 MB in
// all for the longest header of a model. Strings with escapes also leave garbage.
//
// The package is API (README, Stability).
package loader
