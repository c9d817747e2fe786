package stat

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/limits"
)

// A client that wants something to be changed says so in a line, "set " and what lab.ParseChange reads. One that
// wants a snapshot closes its end for writing, or says nothing for a while: programs that only read, as socat does.
const (
	maxRequest = 4 << 10 // bytes
	setWord    = "set "
)

// reply is what came of a change.
type reply struct {
	Done  bool   `json:"done"`
	Error string `json:"error,omitempty"`
}

// request reads a client's line; "": it has none.
func (s *Server) request(c *net.UnixConn) string {
	if c.SetReadDeadline(time.Now().Add(limits.Request.Here())) != nil {
		return ""
	}
	line, err := bufio.NewReader(io.LimitReader(c, maxRequest)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrDeadlineExceeded) {
		return ""
	}
	return strings.TrimSpace(line)
}

// obey does what a client asks for.
func (s *Server) obey(line string) reply {
	err := func() error {
		text, ok := strings.CutPrefix(line, setWord)
		if !ok {
			return fmt.Errorf("%.40q is nothing that this vnic does", line)
		}
		c, err := lab.ParseChange(text)
		if err != nil {
			return err
		}
		change := s.change.Load()
		if change == nil {
			return errors.New("its lab is not there yet, or not any more: try again")
		}
		return (*change)(c)
	}()
	if err != nil {
		return reply{Error: err.Error()}
	}
	return reply{Done: true}
}

// Change has a vnic change something in its lab. An error says what was wrong with it; ErrNone that there is no such
// vnic.
func Change(ctx context.Context, pid int, what lab.Change) (err error) {
	asked := false
	if err := each(func(d *os.File, p int, name string) error {
		if p == pid && !asked {
			asked = true
			err = ask(ctx, d, name, setWord+what.String()+"\n")
		}
		return ctx.Err()
	}); err != nil {
		return err
	}
	if !asked {
		return errNone(fmt.Sprintf(" as process %d", pid))
	}
	return err
}

// ask sends a request. One that was seen too late is sent again: then the server has answered with a snapshot.
func ask(ctx context.Context, d *os.File, name, line string) error {
	for range 10 {
		b, err := exchange(ctx, d, name, line)
		if err != nil {
			return err
		}
		var r struct {
			reply
			Schema int `json:"schema"`
		}
		if err := json.Unmarshal(b, &r); err != nil {
			return fmt.Errorf("what it says cannot be read: %w", err)
		}
		switch {
		case r.Schema != 0:
			continue
		case r.Error != "":
			return errors.New(r.Error)
		case r.Done:
			return nil
		}
		break
	}
	return errors.New("it gives its counters and does not listen: it is older than this vnic, or very busy")
}
