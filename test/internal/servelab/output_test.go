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

type output struct {
	mu   sync.Mutex
	text []byte
	more chan struct{} // guarded by mu; the next Write closes it; if it is nil, nobody waits
}

func (s *output) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = append(s.text, b...)
	if s.more != nil {
		close(s.more)
		s.more = nil
	}
	return len(b), nil
}

func (s *output) now() (string, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.more == nil {
		s.more = make(chan struct{})
	}
	return string(s.text), s.more
}

func (s *output) String() string {
	text, _ := s.now()
	return text
}

// until waits until found accepts the program's output. It returns an error with what and the output if, before that,
// the program or ctx ends, or patience has passed.
func (s *output) until(ctx context.Context, program *proc.Child, what string, found func(text string) bool) error {
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

func (s *output) says(ctx context.Context, program *proc.Child, want string) error {
	return s.until(ctx, program, want, func(text string) bool { return strings.Contains(text, want) })
}

func kill(program *proc.Child) { stranger.Kill(program) }
