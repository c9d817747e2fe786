// Package testnic is how gpudriver-test, in a guest, commands a NIC that is a goroutine of a test on the host
// (test/internal/gpulab): by a page at offset 0 of the GPU's memory, which the program has allocated. The NIC
// reads and writes memory by the places that the driver gives, lets go of pages as the mailbox says, and counts.
//
// Each side writes its half of the page, and then the word that says so, which the other one looks for.
package testnic

import (
	"encoding/binary"

	"vnic.dev/vnic/dma"
)

// What a program commands.
const (
	Attach  = iota + 1 // the mailbox at Args[0]
	SetMode            // Args[0]
	Read               // 8 bytes of Args[0] (a gpudriver.Kind), at Args[1]; Results[0]
	Write              // ... of Args[2]
	Log                // Results: how many requests there were since it was last asked, and then of each Fields words
	Start              // counts up in pages of region Args[0], which has Args[1] of them, at most MaxPages
	Stop               // Results: a Counts, and how far each page was counted
	Lost               // Results[0]: of the mailbox
)

// Modes of the NIC.
const (
	Answers   = iota
	Silent    // it never says that it is done; what is given up it frees
	Dead      // ... and it frees nothing
	Sabotages // it says that it is done, and then writes once more by what it knew of pages in the GPU
	Believes  // it takes an answer of pages in the GPU that is older than the order to let go of them
)

// Fields of a request in the log, of which Flags is 1 where it was given up.
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
	Written  = iota // numbers that were counted up, in all
	Requests        // of pages
	Acks            // invalidations of the region that were answered
	Stale           // answers of pages that were taken back meanwhile
	Counts
)

// MaxPages is how many pages the NIC counts up.
const MaxPages = 64

// MaxRequest is how many pages the NIC asks for at a time.
const MaxRequest = 16

// MaxLog is how many requests the log shows; there may have been more.
const MaxLog = 32

// The page: each of the four parts has its own word that says that it is new.
const (
	atCommand  = 0   // from the program: number, op, arguments
	atResult   = 128 // from the NIC: number, status, results
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
	Failed bool // the test on the host says why
	Words  [MaxLog*Fields + 1]uint64
}

// Request is the NIC's, of pages.
type Request struct {
	Region, N uint32
	First     uint64
}

// Response is the program's. Pages that are not there, or cannot be written, have no place: 0.
type Response struct {
	Generation uint32
	Failed     bool                   // there is no such region any more
	Places     [MaxRequest + 1]uint64 // a place and a gpudriver.Kind
}

// Control is the page.
type Control []byte

func words(b []byte, list []uint64) {
	for i, x := range list {
		binary.LittleEndian.PutUint64(b[8*i:], x)
	}
}

func read(b []byte, list []uint64) {
	for i := range list {
		list[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
}

// put says that what was written behind a word is new.
func (c Control) put(pos int) { dma.StoreWord(c[pos:], dma.LoadWord(c[pos:])+1) }

// pending tells whether one side has said more than the other has answered.
func (c Control) pending(count, answered int) bool {
	return dma.LoadWord(c[count:]) != dma.LoadWord(c[answered:])
}

// Command gives the NIC a command. Nothing is pending.
func (c Control) Command(op uint32, args ...uint64) {
	binary.LittleEndian.PutUint32(c[atCommand+4:], op)
	words(c[atCommand+8:], args)
	c.put(atCommand)
}

// Commanded tells whether there is a command without a result.
func (c Control) Commanded() bool {
	if !c.pending(atCommand, atResult) {
		return false
	}
	if binary.LittleEndian.Uint32(c[atCommand+4:]) == 0 { // the page is being cleared, for whoever has it next
		dma.StoreWord(c[atResult:], dma.LoadWord(c[atCommand:]))
		return false
	}
	return true
}

// GetCommand reads the command.
func (c Control) GetCommand() (x Command) {
	x.Op = binary.LittleEndian.Uint32(c[atCommand+4:])
	read(c[atCommand+8:], x.Args[:])
	return x
}

// Result answers the command.
func (c Control) Result(x *Result) {
	status := uint32(0)
	if x.Failed {
		status = 1
	}
	binary.LittleEndian.PutUint32(c[atResult+4:], status)
	words(c[atResult+8:], x.Words[:])
	c.put(atResult)
}

// GetResult reads the answer.
func (c Control) GetResult(x *Result) {
	x.Failed = binary.LittleEndian.Uint32(c[atResult+4:]) != 0
	read(c[atResult+8:], x.Words[:])
}

// Request asks the program for pages. Nothing is requested.
func (c Control) Request(x Request) {
	words(c[atRequest+8:], []uint64{uint64(x.Region), uint64(x.N), x.First})
	c.put(atRequest)
}

// Requested tells whether there is a request without a response.
func (c Control) Requested() bool { return c.pending(atRequest, atResponse) }

// GetRequest reads the request.
func (c Control) GetRequest() Request {
	var w [3]uint64
	read(c[atRequest+8:], w[:])
	return Request{uint32(w[0]), uint32(w[1]), w[2]}
}

// Respond answers the request.
func (c Control) Respond(x *Response) {
	binary.LittleEndian.PutUint32(c[atResponse+4:], x.Generation)
	places := x.Places
	if x.Failed {
		places[MaxRequest] = 1
	}
	words(c[atResponse+8:], places[:])
	c.put(atResponse)
}

// GetResponse reads the answer.
func (c Control) GetResponse() (x Response) {
	x.Generation = binary.LittleEndian.Uint32(c[atResponse+4:])
	read(c[atResponse+8:], x.Places[:])
	x.Failed = x.Places[MaxRequest] != 0
	return x
}
