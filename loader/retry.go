package loader

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// StatusError is the error of a response with a status other than 206, unless another error fits better: EOPNOTSUPP or
// ENODATA for 200, ErrChanged for 412 after the first response, ENODATA or ErrChanged for some responses 416.
type StatusError struct {
	Code   int
	Status string // as in "404 Not Found"

	retryAfter, date string // headers, as the server writes them
}

func (e *StatusError) Error() string { return "the server answers " + strconv.Quote(e.Status) }

// transient reports whether the server may answer the same request differently later (RFC 9110, sections
// 15.5.9 and 15.6; RFC 6585, section 4). A code above 599 counts as 500 (RFC 9110, section 15).
func (e *StatusError) transient() bool {
	switch e.Code {
	case http.StatusRequestTimeout, http.StatusTooManyRequests:
		return true
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return false
	}
	return e.Code >= 500
}

// wait returns the server's Retry-After (RFC 9110, section 10.2.3), or 0 if it is missing, invalid or past. A date
// counts relative to the response's Date, or to now if that is missing or invalid.
func (e *StatusError) wait(now time.Time) time.Duration {
	if until, err := http.ParseTime(e.retryAfter); err == nil {
		if date, err := http.ParseTime(e.date); err == nil {
			now = date
		}
		return max(0, until.Sub(now))
	}
	seconds, _ := strconv.ParseUint(e.retryAfter, 10, 32) // on overflow ParseUint returns the largest uint32
	return time.Duration(seconds) * time.Second
}

const (
	pauseFirst = 10 * time.Millisecond
	pauseLast  = time.Second
)

type retries struct {
	since time.Time // when the first attempt without progress failed; zero: none has failed
	n     int       // pauses since then
}

// pause waits until the next attempt, after one has failed with why. It returns an error instead if Config.Retry has
// passed since the first failure, if the server's Retry-After is longer than the rest of Config.Retry, or if ctx ends.
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
