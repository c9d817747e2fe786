// Package testnic is the interface by which gpudriver-test, in a guest, commands a NIC that is a goroutine of
// a test on the host (test/internal/gpulab): a page at offset 0 of the GPU's memory, which the program has
// allocated.
//
// Each side writes parts of the page. After each write it increments the part's word, which the other side polls.
package testnic

import (
	"encoding/binary"

	"vnic.dev/vnic/dma"
)

// Commands of the program: values of Command.Op. Args are its arguments, and Words are the result's.
const (
	Attach  = iota + 1 // use the mailbox at offset Args[0] of the GPU's memory
	SetMode            // to Args[0], a mode of the list below
	Read               // Words[0]: the 8 bytes at Args[1] in memory of the kind Args[0] (a gpudriver.Kind)
	Write              // makes the 8 bytes at this place Args[2]
	Log                // Words: the number of requests since the last Log, and Fields words of each of the first MaxLog
	Start              // count up in the pages of region Args[0], which has Args[1] pages, at most MaxPages
	Stop               // end Start. Words: the Counts, and for each page how often the NIC has counted it up
	Lost               // Words[0]: the mailbox's count of lost requests
)

// Modes of the NIC. Requests are here the driver's requests to release pages (package mailbox).
const (
	Answers   = iota // requests are acknowledged after the release of the pages, or freed if the driver gave them up
	Silent           // no request is acknowledged; requests that the driver gave up are freed
	Dead             // no request is acknowledged; none is freed until another mode is set
	Sabotages        // as Answers, but then the NIC writes once more to the released pages in the GPU in which it counted
	Believes         // a Response is used only after a request for one of its pages; then such pages, too, if in the GPU
)

// Fields of a request in the log. Flags is 1 if the driver gave it up, else 0.
const (
	Region = iota
	First
	Pages
	Generation
	Reason
	Flags
	Fields
)

// Counts is the number of the first words of Stop's result, which are counts since Start.
const (
	Written  = iota // writes of the NIC, to all pages
	Requests        // of the NIC, for pages
	Acks            // of the driver's requests to release pages of the region
	Stale           // pages of answers that the driver had invalidated before the NIC read the answer
	Counts
)

// MaxPages bounds the pages in which the NIC counts up.
const MaxPages = 64

// MaxRequest bounds the pages of a [Request].
const MaxRequest = 16

// MaxLog bounds the requests that Log returns; there may have been more.
const MaxLog = 32

// The offsets of the page's parts. A part begins with a number, a word that is incremented when the rest has
// changed.
const (
	atCommand  = 0   // number, op, arguments
	atResult   = 128 // number, status, results
	atRequest  = 2048
	atResponse = 2560
)

// Command is a command of the program.
type Command struct {
	Op   uint32
	Args [8]uint64
}

// Result is the NIC's answer to a Command.
type Result struct {
	Failed bool // the test on the host reports the reason
	_      [3]byte
	Words  [MaxLog*Fields + 1]uint64
}

// Request is the NIC's request for pages.
type Request struct {
	Region, N uint32
	First     uint64
}

// Response is the program's answer to a Request.
type Response struct {
	Generation uint32
	Failed     bool // Places is not valid, for example because the region is closed
	_          [3]byte
	Places     [MaxRequest]uint64 // for each page its Addr | its gpudriver.Kind; 0: Invalid or read-only
}

// Control is the page's memory, as either side has mapped it.
type Control []byte

func (c Control) write(pos int, part any) {
	if _, err := binary.Encode(c[pos+4:], binary.LittleEndian, part); err != nil {
		panic(err) // all parts have a fixed size
	}
	dma.StoreWord(c[pos:], dma.LoadWord(c[pos:])+1)
}

func read[T any](c Control, pos int) (part T) {
	if _, err := binary.Decode(c[pos+4:], binary.LittleEndian, &part); err != nil {
		panic(err)
	}
	return part
}

func (c Control) pending(count, answered int) bool {
	return dma.LoadWord(c[count:]) != dma.LoadWord(c[answered:])
}

// Command gives the NIC a command. The command before must have its result already.
func (c Control) Command(op uint32, args ...uint64) {
	x := Command{Op: op}
	copy(x.Args[:], args)
	c.write(atCommand, x)
}

// Commanded reports whether there is a command without a result.
func (c Control) Commanded() bool {
	if !c.pending(atCommand, atResult) {
		return false
	}
	if c.GetCommand().Op == 0 { // the driver is clearing the page for its next user
		dma.StoreWord(c[atResult:], dma.LoadWord(c[atCommand:]))
		return false
	}
	return true
}

// GetCommand reads the command.
func (c Control) GetCommand() Command { return read[Command](c, atCommand) }

// Result answers the last command.
func (c Control) Result(x *Result) { c.write(atResult, x) }

// GetResult reads the result.
func (c Control) GetResult() Result { return read[Result](c, atResult) }

// Request asks the program for pages. The request before must have its response already.
func (c Control) Request(x Request) { c.write(atRequest, x) }

// Requested reports whether there is a request without a response.
func (c Control) Requested() bool { return c.pending(atRequest, atResponse) }

// GetRequest reads the request.
func (c Control) GetRequest() Request { return read[Request](c, atRequest) }

// Respond answers the request.
func (c Control) Respond(x *Response) { c.write(atResponse, x) }

// GetResponse reads the last response.
func (c Control) GetResponse() Response { return read[Response](c, atResponse) }
