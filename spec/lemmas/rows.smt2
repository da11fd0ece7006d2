; Rows. (A) A row that has no size more often than another one is nowhere above it, whatever the sizes
; are, as long as none is negative. (B) A row is not above its bound if it is not with each size
; replaced by a number that the size never exceeds.
; Induction over the sizes of the row.
; Used: profile.Rows, memory_ranges.prove_ranges (section 5).

(push 1) ; (A), step: one more size, n times here and m times there.
(declare-const row Int) (declare-const other Int)
(declare-const n Int) (declare-const m Int) (declare-const size Int)
(assert (! (<= row other) :named hypothesis))
(assert (! (<= n m) :named not_more_often))
(assert (! (<= 0 size) :named not_negative))
(assert (not (<= (+ row (* n size)) (+ other (* m size)))))
(check-sat)
(pop 1)

(push 1) ; (B), step: one more size and the number above it.
(declare-const row Int) (declare-const number Int)
(declare-const n Int) (declare-const size Int) (declare-const highest Int)
(assert (! (<= row number) :named hypothesis))
(assert (! (<= size highest) :named highest_is_above))
(assert (! (<= 0 n) :named count))
(assert (not (<= (+ row (* n size)) (+ number (* n highest)))))
(check-sat)
(pop 1)

(push 1) ; Boxes that leave out no value: what holds in each box holds everywhere.
(declare-fun in (Int Int) Bool)
(declare-fun good (Int) Bool)
(declare-const b Int)
(assert (! (forall ((x Int)) (=> (not (in 0 x)) (in 1 x))) :named cover))
(assert (! (forall ((x Int)) (=> (in 0 x) (good x))) :named first_box))
(assert (! (forall ((x Int)) (=> (in 1 x) (good x))) :named second_box))
(assert (not (good b)))
(check-sat)
(pop 1)
