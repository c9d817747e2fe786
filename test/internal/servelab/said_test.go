package servelab

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"vnic.dev/vnic/internal/proc"
	"vnic.dev/vnic/test/internal/stranger"
)

// said is what a program has said until now.
type said struct {
	mu   sync.Mutex
	text []byte
	more chan struct{} // under mu: closed with the next that it says; nil: nothing waits
}

func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = append(s.text, b...)
	if s.more != nil {
		close(s.more)
		s.more = nil
	}
	return len(b), nil
}

// now is all of it, and a channel that is closed when there is more.
func (s *said) now() (string, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.more == nil {
		s.more = make(chan struct{})
	}
	return string(s.text), s.more
}

func (s *said) String() string {
	text, _ := s.now()
	return text
}

// until waits for what it says to be what found looks for, as long as the program runs.
func (s *said) until(ctx context.Context, program *proc.Child, what string, found func(text string) bool) error {
	late := time.After(patience)
	for {
		text, more := s.now()
		if found(text) {
			return nil
		}
		var err error
		select {
		case <-more:
			continue
		case <-program.Done():
			if text = s.String(); found(text) {
				return nil
			}
			err = io.EOF
		case <-ctx.Done():
			err = ctx.Err()
		case <-late:
			err = os.ErrDeadlineExceeded
		}
		return fmt.Errorf("no %q: %w: it says:\n%s", what, err, text)
	}
}

// says waits until it has said something.
func (s *said) says(ctx context.Context, program *proc.Child, want string) error {
	return s.until(ctx, program, want, func(text string) bool { return strings.Contains(text, want) })
}

// kill ends a program by SIGKILL, with what it has started.
func kill(program *proc.Child) { stranger.Kill(program) }
