package serve

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"vnic.dev/vnic/internal/gpufd"
	"vnic.dev/vnic/internal/lab"
)

// gpuSockets are the sockets where members of a group get descriptors of the GPUs' memory.
type gpuSockets struct {
	list   []*listener
	server gpufd.Server
	stop   context.CancelFunc
	wg     sync.WaitGroup
}

func (o *Options) sharesGPUs() bool { return o.Group != "" && o.GPUMemory > 0 }

// shareGPUs makes these sockets, one for each of o.Paths, if sharesGPUs. Without a Broker this process serves them
// until Close or the end of ctx; else the broker does. The caller closes the result, even after an error.
func (o *Options) shareGPUs(ctx context.Context, l *lab.Lab) (*gpuSockets, error) {
	s := &gpuSockets{}
	ctx, s.stop = context.WithCancel(ctx)
	if !o.sharesGPUs() {
		return s, nil
	}
	s.server.Note = func(format string, args ...any) { o.Event("GPU", format, args...) }
	for i, path := range o.Paths {
		if err := s.share(ctx, o, path+gpufd.Suffix, l.Port(i).GPU()); err != nil {
			return s, err
		}
	}
	return s, nil
}

func (s *gpuSockets) share(ctx context.Context, o *Options, path string, gpu *lab.GPUMemory) error {
	l, err := listen(ctx, path)
	if err != nil {
		return err
	}
	s.list = append(s.list, l)
	if err := l.share(o.Group); err != nil {
		return fmt.Errorf("socket %s: %w", path, err)
	}
	if o.Broker == nil {
		s.wg.Go(func() { s.server.Serve(ctx, l.UnixListener, int(gpu.File.Fd()), l.rule) })
		return nil
	}
	if l.outside, err = o.Broker.Keep(path, false); err != nil {
		return fmt.Errorf("socket %w", err)
	}
	group, err := groupID(o.Group)
	if err != nil {
		return err
	}
	if err := o.Broker.Give(l.UnixListener, path, gpu.File, group); err != nil {
		return fmt.Errorf("socket %w", err)
	}
	given := l.UnixListener
	l.UnixListener = nil // the broker has the only copy: if it is killed, connecting fails
	return given.Close()
}

// Close ends the service in this process, closes the sockets, and removes their files unless they were replaced.
func (s *gpuSockets) Close() (err error) {
	s.stop()
	s.wg.Wait()
	s.server.Close()
	for _, l := range s.list {
		err = errors.Join(err, l.Close())
	}
	return err
}
