package terminal

import (
	"io"
	"os"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

func TestInputCanBeEnded(t *testing.T) {
	r, w, err := os.Pipe()
	testkit.OK(t, err)
	defer r.Close()
	defer w.Close()
	in := testkit.Must(NewInput(r))(t)
	testkit.Must(w.WriteString("ab"))(t)
	b := make([]byte, 8)
	if n, err := in.Read(b); n != 2 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	ended := make(chan error)
	go func() {
		_, err := in.Read(b)
		ended <- err
	}()
	_, _ = in.Close(), in.Close()
	testkit.Equal(t, "the end of Read", <-ended, io.EOF)
	if _, err := in.Read(b); err != io.EOF {
		t.Errorf("got %v", err)
	}
	testkit.Must(w.WriteString("c"))(t)
	if n, err := r.Read(b); n != 1 || err != nil {
		t.Errorf("the file: %d, %v", n, err)
	}
}
