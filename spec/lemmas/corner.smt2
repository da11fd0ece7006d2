; Corner. Where every size rises with a symbol b (does not fall as b grows, the other symbols fixed
; anywhere), the bytes of every step are greatest at the upper end of b. Sizes that fall: the same
; with the order of b turned round.
; Induction over the summands of a step, each with the coefficient 1.
; Used: intervals.corner, memory_ranges.prove_ranges (spec/verification.md, section 5).

(push 1) ; A function that rises is greatest at the upper end.
(declare-fun f (Int) Int)
(declare-const b Int)
(declare-const lo Int)
(declare-const hi Int)
(assert (! (forall ((x Int) (y Int)) (=> (<= lo x y hi) (<= (f x) (f y)))) :named rises))
(assert (! (<= lo b) :named above_lo))
(assert (! (<= b hi) :named below_hi))
(assert (not (<= (f b) (f hi))))
(check-sat)
(pop 1)

(push 1) ; Step: one more size. What is summed at b is not above what is summed at the corner.
(declare-const sum_b Int)
(declare-const sum_corner Int)
(declare-const size_b Int)
(declare-const size_corner Int)
(assert (! (<= sum_b sum_corner) :named hypothesis))
(assert (! (<= size_b size_corner) :named size_rises))
(assert (not (<= (+ sum_b size_b) (+ sum_corner size_corner))))
(check-sat)
(pop 1)

(push 1) ; So a bound that holds at the corner holds.
(declare-const row_b Int)
(declare-const row_corner Int)
(declare-const bound Int)
(assert (! (<= row_b row_corner) :named sum))
(assert (! (not (> row_corner bound)) :named goal_at_corner))
(assert (> row_b bound))
(check-sat)
(pop 1)
