// Package testnic is the interface by which gpudriver-test, in a guest, commands a NIC that is a goroutine of
// a test on the host (test/internal/gpulab): a page at offset 0 of the GPU's memory, which the program has
// allocated.
//
// Each side writes a part of the page, and then increments a word that the other side polls.
package testnic

import (
	"encoding/binary"

	"vnic.dev/vnic/dma"
)

// Commands of the program.
const (
	Attach  = iota + 1 // the mailbox at Args[0]
	SetMode            // Args[0]
	Read               // Words[0]: the 8 bytes at Args[1] in memory of the kind Args[0] (a gpudriver.Kind)
	Write              // makes these 8 bytes Args[2]
	Log                // Words: the number of requests since the last Log, and Fields words of each, of MaxLog at most
	Start              // count up in the pages of region Args[0], which has Args[1] pages, at most MaxPages
	Stop               // Words: the Counts, and the number that each page was counted up to
	Lost               // Words[0]: the mailbox's count of lost requests
)

// Modes of the NIC.
const (
	Answers   = iota
	Silent    // no request is acknowledged; requests that the driver gave up are freed
	Dead      // no request is acknowledged or freed
	Sabotages // the release of pages in the GPU is acknowledged, and then they are written once more
	Believes  // pages of an answer that the driver has invalidated since are used, if they are in the GPU's memory
)

// Fields of a request in the log. Flags is 1 if the driver gave it up.
const (
	Region = iota
	First
	Pages
	Generation
	Reason
	Flags
	Fields
)

// Counts are the first results of Stop.
const (
	Written  = iota // to all pages
	Requests        // for pages
	Acks            // of invalidations of the region
	Stale           // pages of answers that the driver had invalidated before the NIC read the answer
	Counts
)

// MaxPages bounds the pages in which the NIC counts up.
const MaxPages = 64

// MaxRequest bounds the pages of a request.
const MaxRequest = 16

// MaxLog bounds the requests in the log; there may have been more.
const MaxLog = 32

// The page's parts, each with a word that is incremented when the part has changed.
const (
	atCommand  = 0   // number, op, arguments
	atResult   = 128 // number, status, results
	atRequest  = 2048
	atResponse = 2560
)

// Command is from the program.
type Command struct {
	Op   uint32
	Args [8]uint64
}

// Result is from the NIC.
type Result struct {
	Failed bool // the test on the host has the reason
	_      [3]byte
	Words  [MaxLog*Fields + 1]uint64
}

// Request is the NIC's request for pages.
type Request struct {
	Region, N uint32
	First     uint64
}

// Response is the program's answer.
type Response struct {
	Generation uint32
	Failed     bool // there are no pages, for example because the region is closed
	_          [3]byte
	Places     [MaxRequest]uint64 // a location and a gpudriver.Kind; 0: absent or read-only
}

// Control is the page.
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

// Command gives the NIC a command. The last command must have its result.
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

// Result answers the command.
func (c Control) Result(x *Result) { c.write(atResult, x) }

// GetResult reads the answer.
func (c Control) GetResult() Result { return read[Result](c, atResult) }

// Request asks the program for pages. The last request must have its response.
func (c Control) Request(x Request) { c.write(atRequest, x) }

// Requested reports whether there is a request without a response.
func (c Control) Requested() bool { return c.pending(atRequest, atResponse) }

// GetRequest reads the request.
func (c Control) GetRequest() Request { return read[Request](c, atRequest) }

// Respond answers the request.
func (c Control) Respond(x *Response) { c.write(atResponse, x) }

// GetResponse reads the answer.
func (c Control) GetResponse() Response { return read[Response](c, atResponse) }
