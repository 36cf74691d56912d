package tickwright

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// Kinds of work. Ids are unique among all of them.
const (
	kindJob   = "job"
	kindPoll  = "poll"
	kindTask  = "task"
	kindChunk = "chunk"
)

type throttledError struct{ after time.Duration }

func (e throttledError) Error() string { return "throttled for " + e.after.String() }

// Throttled returns the error of a poll or a task whose partner requests silence: no process calls it before after is over.
func Throttled(after time.Duration) error { return throttledError{after} }

// Held is what polls, tasks and chunks have in common.
type Held struct{ job *Job }

// Fence rises with every claim: refuse a lower one where you write.
func (h Held) Fence() int64 { return h.job.Fence }

// StopReason returns why the handler must stop, or nil.
func (h Held) StopReason() error { return h.job.StopReason() }

// Progress says how far the handler is, as any JSON. It reports whether this worker still holds the work.
func (h Held) Progress(ctx context.Context, value any) (bool, error) {
	return h.job.Progress(ctx, value)
}

// Poll is one poll of a tracker at a partner.
type Poll struct {
	Held
	ID         string    `json:"poll_id"` // the same one whenever this poll is tried again
	TrackerID  int64     `json:"tracker_id"`
	ExternalID string    `json:"external_id"` // the partner's id: the tracking number
	AccountID  string    `json:"account_id"`
	Partner    string    `json:"partner"`
	DueAt      time.Time `json:"due_at"`
}

// ScanEvent is an event of a tracked shipment.
type ScanEvent struct {
	At   time.Time `json:"at"`
	Text string    `json:"text"`
}

// Answer is what a partner answered.
type Answer struct {
	Status   string      // "" when the tracker is unknown to the partner, which changes nothing
	At       time.Time   // since when the status holds; the zero time when it is unknown
	Events   []ScanEvent // at most 100, in any order
	Terminal bool        // the tracker ends; it also ends when the partner's settings list the status
}

// MarshalJSON returns the answer as the protocol has it.
func (a Answer) MarshalJSON() ([]byte, error) {
	body := map[string]any{"status": nil, "terminal": a.Terminal}
	if a.Status != "" {
		body["status"] = a.Status
	}
	if !a.At.IsZero() {
		body["at"] = a.At.Format(time.RFC3339Nano)
	}
	if len(a.Events) > 0 {
		body["events"] = a.Events
	}
	return json.Marshal(body)
}

// EntityTask is one entity, polled for one module in one window. Party is the entity's document; its secrets are references.
type EntityTask[Party any] struct {
	Held
	ID             string     `json:"task_id"` // equal on every attempt
	EntityCode     string     `json:"entity_code"`
	Module         string     `json:"task_type"`
	Party          Party      `json:"party"`
	LastExecutedAt *time.Time `json:"last_executed_at"` // when the last successful run began; nil for the first one
	WindowAt       time.Time  `json:"window_at"`
	DropDeadAt     time.Time  `json:"drop_dead_at"` // no run begins after it
	ConfigVersion  int        `json:"config_version"`
	RunFence       int64      `json:"run_fence"` // rises with each run of this entity and module
}

// Member is a member of a batch's audience.
type Member[Fields any] struct {
	ID     string `json:"id"`
	Fields Fields `json:"fields"`
}

// BatchChunk is one chunk of an execution of a batch. The handler may get it again if it did not complete.
type BatchChunk[Fields any] struct {
	Held
	Batch       string           `json:"batch"`
	ExecutionID int64            `json:"execution_id"`
	Number      int              `json:"number"` // from 0
	SlotAt      time.Time        `json:"slot_at"`
	Version     int              `json:"version"`
	Members     []Member[Fields] `json:"members"` // of the audience; empty without one
}

// Action is a decision about one client, which is sent to the batch's action.
type Action struct {
	ClientID string `json:"client_id"`
	Payload  any    `json:"payload,omitempty"`
}

// Skipped is a member that could not be worked on.
type Skipped struct {
	ClientID string `json:"client_id"`
	Problem  string `json:"problem"`
}

// ChunkResult is what a chunk decided. The zero value completes it without actions.
type ChunkResult struct {
	Actions []Action  `json:"actions,omitempty"` // at most one per client and execution
	Skipped []Skipped `json:"skipped,omitempty"`
}

// HandlePolls registers the courier of a partner, before [Worker.Run]: it polls the partner for one tracker.
func HandlePolls(w *Worker, partner string, handler func(ctx context.Context, poll Poll) (Answer, error)) {
	w.handle(kindPoll, partner, func(ctx context.Context, job *Job) (any, error) {
		poll := Poll{Held: Held{job}}
		if err := decodeWork(job, &poll); err != nil {
			return nil, err
		}
		return handler(ctx, poll)
	})
}

// HandleTasks registers the handler of a module, before [Worker.Run]: it runs to its end once per entity and window.
func HandleTasks[Party any](w *Worker, module string, handler func(ctx context.Context, task EntityTask[Party]) error) {
	w.handle(kindTask, module, func(ctx context.Context, job *Job) (any, error) {
		task := EntityTask[Party]{Held: Held{job}}
		if err := decodeWork(job, &task); err != nil {
			return nil, err
		}
		return nil, handler(ctx, task)
	})
}

// HandleChunks registers the handler of a batch, before [Worker.Run]: what it returns completes the chunk.
func HandleChunks[Fields any](
	w *Worker, batch string, handler func(ctx context.Context, chunk BatchChunk[Fields]) (ChunkResult, error),
) {
	w.handle(kindChunk, batch, func(ctx context.Context, job *Job) (any, error) {
		chunk := BatchChunk[Fields]{Held: Held{job}}
		if err := decodeWork(job, &chunk); err != nil {
			return nil, err
		}
		return handler(ctx, chunk)
	})
}

func decodeWork(job *Job, into any) error {
	if err := json.Unmarshal(job.Payload, into); err != nil {
		return Fail(fmt.Errorf("payload_invalid: %w", err))
	}
	return nil
}
