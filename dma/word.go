//go:build amd64 || arm64

package dma

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// StoreWord stores v at the start of b as one little-endian word: a reader sees either the old word or the new
// one, and a reader that loads the new word as an acquire (LoadWord; a driver's read barrier) also sees what was
// stored before it. StoreWord panics if b does not start at a multiple of 4 (Pin.Aligned), or has no room for 4
// bytes.
//
// On amd64 the store is XCHG, on arm64 STLR, both a release.
func StoreWord(b []byte, v uint32) {
	atomic.StoreUint32(word(b), v)
}

// LoadWord loads the little-endian word at the start of b, as an acquire: if the peer stored the word by a release,
// later loads see what the peer had stored before. It panics as StoreWord does.
func LoadWord(b []byte) uint32 { return atomic.LoadUint32(word(b)) }

// CompareAndSwapWord stores v in the word at the start of b if the word equals old, and reports whether it did. A swap
// is both a release and an acquire. CompareAndSwapWord panics as StoreWord does.
func CompareAndSwapWord(b []byte, old, v uint32) bool {
	return atomic.CompareAndSwapUint32(word(b), old, v)
}

// word returns the address of the word at the start of b. It panics if b does not start at a multiple of 4.
func word(b []byte) *uint32 {
	p := unsafe.Pointer(unsafe.SliceData(b[:4])) // panics if b's capacity is less than 4
	if uintptr(p)&3 != 0 {
		panic(fmt.Sprintf("dma: word at %p is not aligned", p))
	}
	return (*uint32)(p)
}

// Aligned reports whether the memory starts at a multiple of n, which must be a power of two.
func (p *Pin) Aligned(n uintptr) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(p.mem)))&(n-1) == 0
}
