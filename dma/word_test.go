package dma_test

import (
	"testing"

	"vnic.dev/vnic/dma"
)

// StoreWord changes the four bytes of its word alone, and panics for memory that is not aligned or too short.
func TestStoreWord(t *testing.T) {
	b := make([]byte, 16)
	for i := range b {
		b[i] = 0xee
	}
	dma.StoreWord(b[4:], 0x04030201)
	for i, v := range b {
		want := byte(0xee)
		if i >= 4 && i < 8 {
			want = byte(i - 3)
		}
		if v != want {
			t.Errorf("byte %d is %#x, not %#x", i, v, want)
		}
	}
	if v := dma.LoadWord(b[4:]); v != 0x04030201 {
		t.Errorf("%#x", v)
	}
	if dma.CompareAndSwapWord(b[4:], 0x04030202, 5) || dma.LoadWord(b[4:]) != 0x04030201 {
		t.Errorf("a word that is another was swapped: %#x", dma.LoadWord(b[4:]))
	}
	if !dma.CompareAndSwapWord(b[4:], 0x04030201, 0x08070605) || b[3] != 0xee || b[4] != 5 || b[7] != 8 || b[8] != 0xee {
		t.Errorf("not swapped, or more than that: % x", b)
	}
	for name, word := range map[string][]byte{"odd": b[1:], "2 mod 4": b[2:], "short": b[4:7:7], "empty": nil} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: a word was stored", name)
				}
			}()
			dma.StoreWord(word, 1)
		}()
	}
	dma.StoreWord(b[12:], 7) // the last word of b
}
