package devmemtool

import (
	"fmt"
	"io"
)

// pattern is ncdevmem's: the bytes 1 to n-1 and a newline, repeated.
type pattern struct{ n int }

func (p pattern) byteAt(pos uint64) byte {
	if b := (pos + 1) % uint64(p.n); b != 0 {
		return byte(b)
	}
	return '\n'
}

func (p pattern) fill(b []byte, pos uint64) {
	for i := range b {
		b[i] = p.byteAt(pos + uint64(i))
	}
}

const maxWrong = 20

type validator struct {
	pattern
	pos   uint64
	wrong uint64
	out   io.Writer
}

// Write never fails: v.wrong counts the wrong bytes.
func (v *validator) Write(b []byte) (int, error) {
	for i, got := range b {
		if want := v.byteAt(v.pos + uint64(i)); got != want {
			if v.wrong++; v.wrong <= maxWrong {
				_, _ = fmt.Fprintf(v.out, "Failed validation: expected=%d, actual=%d, index=%d\n", want, got, v.pos+uint64(i))
			}
		}
	}
	v.pos += uint64(len(b))
	return len(b), nil
}

func (v *validator) err() error {
	switch {
	case v.wrong > 0:
		return fmt.Errorf("validation failed: %d of %d bytes are wrong", v.wrong, v.pos)
	case v.pos == 0:
		return fmt.Errorf("validation failed: nothing was received")
	}
	return nil
}
