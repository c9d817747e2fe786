package gpumem

// Buffer is a registered range of a GPU's memory.
type Buffer struct {
	ID        uint32
	GPU       int
	Off, Size uint64
}

// Registry is the buffers that one port has registered in the GPUs that it may use.
type Registry struct{}

// NewRegistry returns an empty registry of at most limit buffers.
func NewRegistry(gpus []*GPU, limit int) *Registry { return &Registry{} }

// GPUs returns the GPUs that the port may use.
func (r *Registry) GPUs() []*GPU { return nil }

// GPU returns the GPU with that id, nil if the port may not use it.
func (r *Registry) GPU(id int) *GPU { return nil }

// RegisterBuffer registers [off, off+size) of a GPU and returns the buffer's id, from 1.
func (r *Registry) RegisterBuffer(gpu int, off, size uint64) (uint32, error) { return 0, errNotYet }

// Unregister undoes RegisterBuffer; it waits for engine pieces that are at work in the buffer.
func (r *Registry) Unregister(id uint32) error { return errNotYet }

// Lookup returns a registered buffer.
func (r *Registry) Lookup(id uint32) (Buffer, bool) { return Buffer{}, false }

// Buffers returns all registered buffers, by id.
func (r *Registry) Buffers() []Buffer { return nil }

// Retain keeps a buffer registered (a binding): Unregister is EBUSY until as many Release.
func (r *Registry) Retain(id uint32) (Buffer, error) { return Buffer{}, errNotYet }

// Release undoes Retain.
func (r *Registry) Release(id uint32) {}

// CloseAll unregisters everything, retained or not: the port is reset or gone, its bindings with it.
func (r *Registry) CloseAll() {}
