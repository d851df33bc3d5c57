package launcher

import "context"

// lookupsKey is the key of a context's function that counts lookups.
type lookupsKey struct{}

// WithLookups returns a context that makes a launcher call count before it looks for a kernel that is not in its
// memory, for example in the cluster. If count returns an error, the launcher returns that error and does not look.
// count may be called concurrently.
func WithLookups(ctx context.Context, count func() error) context.Context {
	return context.WithValue(ctx, lookupsKey{}, count)
}

// CountLookup counts a lookup as WithLookups describes. It returns nil for a context without a count. Launchers call
// it.
func CountLookup(ctx context.Context) error {
	if count, ok := ctx.Value(lookupsKey{}).(func() error); ok {
		return count()
	}
	return nil
}
