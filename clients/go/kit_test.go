package tickwright

import (
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
)

// breakable is a network that loses heartbeats while it is on.
type breakable struct{ on atomic.Bool }

func (b *breakable) client() *http.Client { return &http.Client{Transport: b} }

func (b *breakable) RoundTrip(request *http.Request) (*http.Response, error) {
	if b.on.Load() && strings.HasSuffix(request.URL.Path, "/heartbeat") {
		return nil, errors.New("no route")
	}
	return http.DefaultTransport.RoundTrip(request)
}
