package loader

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// StatusError is a response that is none of what was asked for, as 404 or 503.
type StatusError struct {
	Code   int
	Status string // the server's words: "404 Not Found"

	retryAfter, date string // headers, as the server writes them
}

func (e *StatusError) Error() string { return "the server answers " + strconv.Quote(e.Status) }

// transient reports whether the same request may have another answer later (RFC 9110, sections 15.5.9
// and 15.6; RFC 6585, section 4). A code above 599 is taken for 500 (RFC 9110, section 15).
func (e *StatusError) transient() bool {
	switch e.Code {
	case http.StatusRequestTimeout, http.StatusTooManyRequests:
		return true
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return false
	}
	return e.Code >= 500
}

// wait is how long the server asks to wait: Retry-After, in seconds or as a date (RFC 9110, section
// 10.2.3), which the server's own clock is compared with where it gives that. 0: it does not ask.
func (e *StatusError) wait(now time.Time) time.Duration {
	if until, err := http.ParseTime(e.retryAfter); err == nil {
		if date, err := http.ParseTime(e.date); err == nil {
			now = date
		}
		return max(0, until.Sub(now))
	}
	seconds, _ := strconv.ParseUint(e.retryAfter, 10, 32) // the largest where there are more
	return time.Duration(seconds) * time.Second
}

// Bounds of the pause before it is tried again where the attempt before brought nothing.
const (
	pauseFirst = 10 * time.Millisecond
	pauseLast  = time.Second
)

// retries counts attempts without progress.
type retries struct {
	since time.Time // when the first of them failed; zero: there is none
	n     int
}

// pause waits until the next attempt, where one has failed because of why; or says why there is to be
// none.
func (r *retries) pause(ctx context.Context, c *Config, why error) error {
	now := c.now()
	if r.since.IsZero() {
		r.since = now
	}
	gone := now.Sub(r.since)
	if gone >= c.Retry {
		return fmt.Errorf("no progress for %v, and %d attempts: %w", gone.Round(time.Millisecond), r.n, why)
	}
	pause := min(pauseFirst<<min(r.n, 10), pauseLast)
	if e := (*StatusError)(nil); errors.As(why, &e) {
		asked := e.wait(now)
		if left := c.Retry - gone; asked > left {
			return fmt.Errorf("%w, with Retry-After %v: it is only tried for %v more, so give a longer time (--retry)", why,
				asked, left.Round(time.Millisecond))
		}
		pause = max(pause, asked)
	}
	r.n++
	select {
	case <-c.after(pause):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
