package nvmetcp

import (
	"encoding/hex"
	"testing"
	"time"
)

// The target sends arbitrary bytes on the I/O queue. Of the memory that attack checks, only the memory of reads may
// change.
func FuzzStream(f *testing.F) {
	whole := make([]byte, headLen+hostileLen)
	p := transfer{common: common{Type: typeC2HData, Flags: flagLast | flagSuccess, HLen: headLen, PDO: headLen,
		PLen: uint32(len(whole))}, CID: 1 << slotBits, Len: hostileLen}
	p.encode((*[headLen]byte)(whole))
	f.Add(whole)
	for _, s := range []string{
		"0700181818020000 0004 0000 00000000 00020000 00000000", "0900180018000000 0304 0100 00000000 00600000 00000000",
		"0500180018000000 0000000000000000 00000000 0104 0000", "0300180020000000 0100 0c000000 000000000000 00000000 06",
		"0704182420000000 0204 0000 00000000 fcffffff 00000000", "07041818ffffffff 0204 0000 00000000 00600000 00000000",
	} {
		b := make([]byte, 0, 64)
		for _, word := range []byte(s) {
			if word != ' ' {
				b = append(b, word)
			}
		}
		b, err := hex.DecodeString(string(b))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(append(b, whole...))
		f.Add(append(whole, b...))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r := newRig(t, script{serial: true, answer: func(q *ioServer, c *command) bool {
			if c.n == hostileOps-1 {
				_, _ = q.c.Write(data)
				_ = q.c.CloseWrite()
			}
			return true
		}})
		r.target.quiet = true // the target does not report errors of the initiator
		r.conf.Timeout = 5 * time.Second
		d := r.open(t)
		if bad, err := r.attack(t, d, true); err == nil && bad < hostileOps {
			t.Errorf("all is well, but %d operations", bad)
		}
	})
}
