package control

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"time"
)

// Times between polls of a job, whose notify may be lost.
const (
	firstPoll = 100 * time.Millisecond // doubles with each poll, up to lastPoll
	lastPoll  = time.Second
)

// maxEnded bounds the ended jobs that a client stores for later calls of WaitJob.
const maxEnded = 64

// jobWaits passes the status of ended jobs to calls of WaitJob; under the client's mu.
type jobWaits struct {
	waiters map[uint64][]chan JobStatus
	recent  [maxEnded]JobStatus // a ring of ended jobs for which no WaitJob waited when the notify came
	next    int
}

func (j *jobWaits) ended(s JobStatus) {
	ws := j.waiters[s.ID]
	delete(j.waiters, s.ID)
	for _, w := range ws {
		w <- s
	}
	if len(ws) == 0 {
		j.recent[j.next] = s
		j.next = (j.next + 1) % maxEnded
	}
}

func (j *jobWaits) wait(id uint64) chan JobStatus {
	w := make(chan JobStatus, 1)
	if i := slices.IndexFunc(j.recent[:], func(s JobStatus) bool { return s.ID == id && s.State == JobDone }); i >= 0 {
		w <- j.recent[i]
		return w
	}
	if j.waiters == nil {
		j.waiters = make(map[uint64][]chan JobStatus)
	}
	j.waiters[id] = append(j.waiters[id], w)
	return w
}

func (j *jobWaits) reset() {
	for id, ws := range j.waiters {
		for _, w := range ws {
			w <- JobStatus{ID: id, State: JobDone, Errno: uint16(syscall.ECANCELED)}
		}
	}
	*j = jobWaits{}
}

func (j *jobWaits) remove(id uint64, w chan JobStatus) {
	ws := slices.DeleteFunc(j.waiters[id], func(o chan JobStatus) bool { return o == w })
	if len(ws) == 0 {
		delete(j.waiters, id)
	} else {
		j.waiters[id] = ws
	}
}

// WaitJob waits for a job's end, by the NIC's notify, and polls in case the notify is lost. It does not return the
// job's own error: [JobStatus.Err] does. If the generation of the port's state changes, the status has ECANCELED.
func (c *Client) WaitJob(ctx context.Context, id uint64) (JobStatus, error) {
	c.mu.Lock()
	w := c.jobs.wait(id)
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.jobs.remove(id, w)
	}()
	wait := firstPoll
	for {
		select {
		case s := <-w:
			return s, nil
		case <-ctx.Done():
			return JobStatus{ID: id, State: JobRunning}, ctx.Err()
		case <-time.After(wait):
			s, err := c.PollJob(ctx, id)
			if errors.Is(err, syscall.ENOENT) { // the NIC has dropped its status
				return lateNotify(ctx, w, err)
			}
			if err != nil || s.State == JobDone {
				return s, err
			}
			wait = min(2*wait, lastPoll)
		}
	}
}

func lateNotify(ctx context.Context, w chan JobStatus, err error) (JobStatus, error) {
	select {
	case s := <-w:
		return s, nil
	case <-time.After(lastPoll):
	case <-ctx.Done():
	}
	return JobStatus{}, err
}

// RunJob is SubmitJob and WaitJob; the error may also be the job's. If ctx ends, RunJob cancels the job: when
// RunJob returns, the job does not access memory, unless the NIC does not answer or the client was closed.
func (c *Client) RunJob(ctx context.Context, j Job) (JobStatus, error) {
	if err := ctx.Err(); err != nil {
		return JobStatus{}, err
	}
	// ctx does not cancel the submission: the job might run, and its id would be unknown.
	id, err := c.SubmitJob(context.WithoutCancel(ctx), j)
	if err != nil {
		return JobStatus{}, err
	}
	s, err := c.WaitJob(ctx, id)
	if err != nil {
		if ctx.Err() != nil {
			_, cancelErr := c.CancelJob(context.WithoutCancel(ctx), id)
			err = errors.Join(err, cancelErr)
		}
		return s, err
	}
	return s, s.Err()
}
